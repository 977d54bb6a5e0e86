// Goal: the library counts what it does, loses no count over reconnects, works with brokers that do
// not know counters, and maps no page that could kill its process. Method: the fake broker, which
// speaks either version and can send any page.
#include "runtime/client/counters.h"

#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <sys/mman.h>

#include <atomic>
#include <fstream>
#include <thread>
#include <vector>

#include "runtime/client/testing/client_fixture.h"

namespace gpushm::client {
namespace {

using protocol::Counter;
using protocol::Kind;
using protocol::WordOf;

WritableSegment NewPage() {
  return *MakeSealed("counters", sizeof(protocol::CounterPage), Writers::kAll);
}
Mapping MapPage(const WritableSegment& page) {
  constexpr uint64_t kBytes = sizeof(protocol::CounterPage);
  return *MapSealed(page.fd, "counters", kBytes, kBytes, Writers::kAll);
}
uint64_t At(const WritableSegment& page, size_t word) {
  return static_cast<protocol::CounterPage*>(page.mapping.address())->words[word];
}

TEST(Counters, WhatWasCountedWithoutAPageGoesIntoTheNextOne) {
  Counters counters;
  counters.Add(Counter::kOffers, 3);
  const auto first = NewPage();
  counters.Use(MapPage(first));
  counters.Add(Counter::kOffers);
  counters.AddError(Code::kStale);
  EXPECT_EQ(At(first, WordOf(Counter::kOffers)), 4u);
  counters.UseOwn();
  counters.Add(Counter::kOffers, 5);
  EXPECT_EQ(At(first, WordOf(Counter::kOffers)), 4u);
  const auto second = NewPage();
  counters.Use(MapPage(second));
  counters.AddFirstAttach(70'000);
  EXPECT_EQ(At(second, WordOf(Counter::kOffers)), 5u);
  EXPECT_EQ(At(second, WordOf(Code::kStale)), 0u) << "the former page has it";
  EXPECT_EQ(At(second, protocol::WordOfFirstAttach(70'000)), 1u);
  EXPECT_EQ(At(second, WordOf(Counter::kFirstAttachNs)), 70'000u);
}

// Goal: while threads count, pages come and go. No page is unmapped too early, and every count is
// in one of them. Method: two threads count, and this one changes pages as fast as it can.
TEST(Counters, NothingIsLostWhilePagesChange) {
#ifdef GPUSHM_SANITIZED
  constexpr int kPages = 200;
#else
  constexpr int kPages = 2000;
#endif
  Counters counters;
  std::atomic<bool> stop{false};
  std::array<uint64_t, 2> counted{};
  std::vector<std::thread> threads;
  for (uint64_t& mine : counted) {
    threads.emplace_back([&] {
      while (!stop.load(std::memory_order_relaxed)) {
        counters.Add(Counter::kCachedAttaches);
        ++mine;
      }
    });
  }
  std::vector<WritableSegment> pages;
  for (int i = 0; i < kPages; ++i) {
    pages.push_back(NewPage());
    counters.Use(MapPage(pages.back()));
    if (i % 3 == 0) counters.UseOwn();
    pages.back().fd.Reset();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  pages.push_back(NewPage());
  counters.Use(MapPage(pages.back()));
  uint64_t sum = 0;
  for (const auto& page : pages) sum += At(page, WordOf(Counter::kCachedAttaches));
  EXPECT_EQ(sum, counted[0] + counted[1]);
}

class CountersTest : public ConnectionTest {
 protected:
  // Fails with NOT_FOUND.
  void Miss() {
    auto options = Sized<gpushm_attach_options>();
    options.timeout_ms = GPUSHM_DONT_WAIT;
    gpushm_attachment* attachment = nullptr;
    EXPECT_EQ(gpushm_attach(client_.get(), "nothing", &options, &attachment), GPUSHM_NOT_FOUND);
  }
  uint64_t Counted(size_t word) const { return broker_->counted()[word]; }
};

TEST_F(CountersTest, CountsErrorsByCauseAndWaits) {
  Start();
  Open();
  Miss();
  Miss();
  EXPECT_EQ(Counted(WordOf(Code::kNotFound)), 2u);
  EXPECT_EQ(Counted(WordOf(Counter::kWaits)), 0u) << "who does not wait, does not wait";
  auto waiting = Sized<gpushm_wait_options>();
  waiting.timeout_ms = 20;
  EXPECT_EQ(gpushm_wait(client_.get(), "nothing", 0, &waiting, nullptr), GPUSHM_TIMEOUT);
  EXPECT_EQ(Counted(WordOf(Counter::kWaits)), 0u) << "who waits in vain is counted apart";
  EXPECT_EQ(Counted(WordOf(Counter::kWaitsTimedOut)), 1u);
  EXPECT_GE(Counted(WordOf(Counter::kWaitNs)), 19'000'000u);
  EXPECT_EQ(Counted(WordOf(Code::kTimeout)), 1u);
  auto info = Sized<gpushm_info>();
  EXPECT_EQ(gpushm_lookup(client_.get(), "nothing", &info), GPUSHM_NOT_FOUND);
  EXPECT_EQ(Counted(WordOf(Code::kNotFound)), 2u) << "an answer to a question";
  EXPECT_EQ(gpushm_create(client_.get(), "frames", 4096, nullptr, nullptr), GPUSHM_OK);
  EXPECT_EQ(gpushm_replace(client_.get(), "frames", 4096, nullptr, nullptr), GPUSHM_OK);
  EXPECT_EQ(Counted(WordOf(Counter::kCreates)), 1u);
  EXPECT_EQ(Counted(WordOf(Counter::kReplaces)), 1u);
}

// Method: the replace may happen before the wait begins, so it is repeated until one comes later.
TEST_F(CountersTest, CountsAWaitThatEndedWell) {
  Start();
  Open();
  ASSERT_EQ(gpushm_create(client_.get(), "frames", 4096, nullptr, nullptr), GPUSHM_OK);
  const Deadline deadline = Deadline::AfterMs(20'000);
  while (Counted(WordOf(Counter::kWaits)) == 0 && !deadline.Passed()) {
    auto info = Sized<gpushm_info>();
    ASSERT_EQ(gpushm_lookup(client_.get(), "frames", &info), GPUSHM_OK);
    std::thread waiting([&] {
      EXPECT_EQ(gpushm_wait(client_.get(), "frames", info.generation + 1, nullptr, nullptr),
                GPUSHM_OK);
    });
    EXPECT_EQ(gpushm_replace(client_.get(), "frames", 4096, nullptr, nullptr), GPUSHM_OK);
    waiting.join();
  }
  EXPECT_EQ(Counted(WordOf(Counter::kWaits)), 1u);
  EXPECT_EQ(Counted(WordOf(Counter::kWaitsTimedOut)), 0u);
  EXPECT_GT(Counted(WordOf(Counter::kWaitNs)), 0u);
}

// The broker dies and another one comes: counting continues, also from before there was a page.
TEST_F(CountersTest, GoesOnOverBrokersWithAndWithoutAPage) {
  Start();
  broker_->SetTwist([](const FakeRequest& request, FakeReply* reply) {
    if (request.kind == Kind::kCounters) reply->Set(Status(Code::kExhausted, "no memory"));
  });
  Open();
  Miss();
  Start(2);
  Miss();
  EXPECT_EQ(Counted(WordOf(Code::kNotFound)), 2u) << "and what was counted before, too";
  Start(3);
  Miss();
  EXPECT_EQ(Counted(WordOf(Code::kNotFound)), 1u) << "a new page begins at 0";
  broker_.reset();
  auto soon = Sized<gpushm_delete_options>();
  soon.timeout_ms = GPUSHM_DONT_WAIT;
  EXPECT_EQ(gpushm_delete(client_.get(), "nothing", &soon), GPUSHM_UNAVAILABLE);
  Start(4);
  Miss();
  EXPECT_EQ(Counted(WordOf(Code::kUnavailable)), 1u) << "counted while no broker was there";
}

TEST_F(CountersTest, AResumedConnectionGoesOnWithItsPage) {
  Start();
  broker_->KeepClients();
  Open();
  Miss();
  broker_->SetTwist([](const FakeRequest& request, FakeReply* reply) {
    reply->hang_up = request.kind == Kind::kBrokerInfo && request.connection == 1;
  });
  EXPECT_EQ(BrokerInfo(), GPUSHM_OK);
  Miss();
  EXPECT_EQ(broker_->connections(), 2u);
  EXPECT_EQ(Counted(WordOf(Code::kNotFound)), 2u);
}

TEST_F(CountersTest, WithoutAPageItWorksOn) {
  Start();
  broker_->SetTwist([](const FakeRequest& request, FakeReply* reply) {
    if (request.kind == Kind::kCounters) reply->Set(Status(Code::kExhausted, "no memory"));
  });
  Open();
  Miss();
  EXPECT_EQ(BrokerInfo(), GPUSHM_OK);
  EXPECT_EQ(broker_->connections(), 1u);
  broker_->SetTwist([](const FakeRequest& request, FakeReply* reply) {
    if (request.kind == Kind::kCounters) reply->body<protocol::CountersReply>()->version = 9;
  });
  Open();
  EXPECT_EQ(BrokerInfo(), GPUSHM_OK) << "a layout that it does not know";
}

// Goal: no page that could kill the process is ever mapped. Method: several invalid pages, one
// after the other; each of them ends its connection.
TEST_F(CountersTest, RefusesPagesThatCouldKillIt) {
  constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const UniqueFd unsealed(memfd_create("unsealed", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096), 0);
  const UniqueFd large(memfd_create("large", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(large.get(), 8192), 0);
  ASSERT_EQ(fcntl(large.get(), F_ADD_SEALS, kSizeSeals), 0);
  const UniqueFd hollow(memfd_create("hollow", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(hollow.get(), 4096), 0);
  ASSERT_EQ(fcntl(hollow.get(), F_ADD_SEALS, kSizeSeals), 0);
  const UniqueFd other(open("/dev/null", O_RDWR | O_CLOEXEC));
  Start();
  auto options = Sized<gpushm_open_options>();
  options.folder = folder_.path().c_str();
  options.timeout_ms = GPUSHM_DONT_WAIT;
  for (const std::vector<int>& descriptors :
       {std::vector<int>{unsealed.get()}, {large.get()}, {hollow.get()}, {}, {1, 2}}) {
    broker_->SetTwist([&](const FakeRequest& request, FakeReply* reply) {
      if (request.kind == Kind::kCounters) reply->descriptors = descriptors;
    });
    gpushm_client* client = nullptr;
    EXPECT_EQ(gpushm_open(&options, &client), GPUSHM_CORRUPT);
  }
  broker_->SetTwist([&](const FakeRequest& request, FakeReply* reply) {
    if (request.kind == Kind::kCounters) reply->descriptors = {other.get()};
  });
  Open();
  EXPECT_EQ(BrokerInfo(), GPUSHM_OK) << "no memfd at all: it goes on without";
}

TEST_F(CountersTest, AThousandReconnectsLeaveNoPages) {
  Start();
  Open();
  const auto pages = [] {
    size_t count = 0;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      count += line.find("gpushm-counters") != std::string::npos ? 1 : 0;
    }
    return count;
  };
  std::atomic<bool> hang_up{false};
  broker_->SetTwist([&](const FakeRequest& request, FakeReply* reply) {
    reply->hang_up = request.kind == Kind::kBrokerInfo && hang_up.exchange(false);
  });
  for (int i = 0; i < 1000; ++i) {
    hang_up = true;
    ASSERT_EQ(BrokerInfo(), GPUSHM_OK);
  }
  EXPECT_EQ(broker_->connections(), 1001u);
  // The fake broker keeps each client's page.
  EXPECT_LE(pages(), 1001u + 2);
}

}  // namespace
}  // namespace gpushm::client
