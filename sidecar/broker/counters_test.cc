// Goal: sums are right and never decrease, and a client that writes arbitrary bytes into its page
// affects only its own container. Method: the book by itself, then the real broker with hand-made
// clients.
#include "sidecar/broker/counters.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <random>

#include "platform/base/clock.h"
#include "sidecar/broker/testing/broker_process.h"
#include "sidecar/broker/testing/raw_client.h"

namespace gpushm::broker::testing {
namespace {

using protocol::Counter;
using protocol::CounterPage;
using protocol::Kind;

constexpr size_t kOffers = protocol::WordOf(Counter::kOffers);

// Maps them like a client and the plugin.
Mapping MapPage(int fd) {
  const UniqueFd own(dup(fd));
  auto page = MapSealed(own, "counters", sizeof(CounterPage), sizeof(CounterPage), Writers::kAll);
  return page ? std::move(*page) : Mapping();
}
CounterPage& PageIn(const Mapping& mapping) {
  return *static_cast<CounterPage*>(mapping.address());
}

class CounterBookTest : public ::testing::Test {
 protected:
  CounterBookTest() : book_(*CounterBook::Create({"other", "app", "other"})) {
    const UniqueFd own(dup(book_.fd()));
    segment_ = *MapSealed(own, "counters", 4096, 4096, Writers::kMaker);
    const auto& header = *static_cast<protocol::CounterSegmentHeader*>(segment_.address());
    EXPECT_EQ(header.constants.containers, 2u) << "one that is named twice is one";
  }
  Mapping PageOf(uint64_t client, const char* container = "app") {
    return MapPage(*book_.PageOf(Client{client, container}));
  }
  const protocol::CounterRecord& RecordOf(size_t container) const {
    const auto* const bytes = static_cast<const std::byte*>(segment_.address());
    return reinterpret_cast<const protocol::CounterRecord*>(
        bytes + sizeof(protocol::CounterSegmentHeader))[container];
  }
  uint64_t Offers(size_t container) const { return RecordOf(container).words[kOffers]; }

  CounterBook book_;
  Mapping segment_;
};

TEST_F(CounterBookTest, AddsUpByContainerAndKeepsWhatEnded) {
  const Mapping one = PageOf(1);
  const Mapping two = PageOf(2);
  const Mapping other = PageOf(3, "other");
  PageIn(one).words[kOffers] = 3;
  PageIn(two).words[kOffers] = 4;
  PageIn(other).words[kOffers] = 5;
  EXPECT_EQ(Offers(0), 0u) << "not looked at yet";
  book_.Publish();
  EXPECT_EQ(Offers(0), 7u);
  EXPECT_EQ(Offers(1), 5u);
  PageIn(one).words[kOffers] = 10;
  book_.End(1);
  EXPECT_EQ(Offers(0), 14u) << "looked at a last time";
  book_.End(1);
  book_.End(99);
  book_.Publish();
  EXPECT_EQ(Offers(0), 14u);
  const Mapping again = PageOf(2);
  EXPECT_EQ(PageIn(again).words[kOffers], 4u) << "the same page";
  EXPECT_FALSE(book_.PageOf(Client{4, "stranger"}));
  book_.End(2);
  book_.End(3);
  EXPECT_FALSE(book_.has_pages());
}

// Goal: the segment has what only the broker knows of the pod. Method: it is read as the plugin
// reads it.
TEST_F(CounterBookTest, StatesMpsAndPrivateMemory) {
  const auto& header = *static_cast<const protocol::CounterSegmentHeader*>(segment_.address());
  EXPECT_EQ(header.mps.state, static_cast<uint64_t>(protocol::MpsWord::kNone));
  status::MpsState state{.state = status::kMpsReady, .daemon_restarts = 1, .clients = 3};
  book_.SetMps(state);
  EXPECT_EQ(header.mps.state, static_cast<uint64_t>(protocol::MpsWord::kNotReady)) << "it is old";
  EXPECT_EQ(header.mps.clients, 0u);
  state.time_unix_ms = UnixNs() / 1'000'000;
  book_.SetMps(state);
  EXPECT_EQ(header.mps.state, static_cast<uint64_t>(protocol::MpsWord::kReady));
  EXPECT_EQ(header.mps.clients, 3u);
  EXPECT_EQ(header.mps.daemon_restarts, 1u);
  book_.SetPrivate({{"other", 5}, {"stranger", 6}});
  EXPECT_EQ(RecordOf(0).private_bytes, 0u);
  EXPECT_EQ(RecordOf(1).private_bytes, 5u);
}

TEST_F(CounterBookTest, NoPageCanTakeAnythingBack) {
  std::mt19937_64 random(1);
  const Mapping liar = PageOf(1);
  const Mapping honest = PageOf(2, "other");
  uint64_t last = 0;
  for (int i = 0; i < 10'000; ++i) {
    for (protocol::CounterWord& word : PageIn(liar).words) {
      word = random() % 2 == 0 ? random() : random() % 100;
    }
    ++PageIn(honest).words[kOffers];
    book_.Publish();
    ASSERT_GE(Offers(0), last);
    last = Offers(0);
    ASSERT_LE(last, protocol::kMaxCount);
    ASSERT_EQ(Offers(1), PageIn(honest).words[kOffers]);
  }
  book_.End(1);
  EXPECT_EQ(Offers(0), protocol::kMaxCount);
  PageIn(PageOf(3)).words[kOffers] = 1;
  book_.Publish();
  EXPECT_EQ(Offers(0), protocol::kMaxCount) << "it does not begin again";
}

class BrokerCountersTest : public ::testing::Test {
 protected:
  BrokerCountersTest() : broker_(folder_.path(), TwoContainers()) {}
  Result<protocol::CountersReply> Ask(RawClient* client) {
    return client->Call<protocol::CountersReply>(Kind::kCounters, protocol::CountersRequest{0});
  }

  TempFolder folder_;
  BrokerProcess broker_;
};

TEST_F(BrokerCountersTest, APageCannotBeResizedOrSealed) {
  RawClient client(broker_.Socket("app"));
  ASSERT_TRUE(client.Hello());
  ASSERT_TRUE(Ask(&client));
  ASSERT_EQ(client.descriptors().size(), 1u);
  const UniqueFd page = std::move(client.descriptors()[0]);
  EXPECT_NE(MapPage(page.get()).address(), nullptr);
  EXPECT_NE(ftruncate(page.get(), 0), 0);
  EXPECT_NE(ftruncate(page.get(), 8192), 0);
  EXPECT_NE(fcntl(page.get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  // A client may punch holes into its pages; the broker then reads zeros.
  EXPECT_EQ(fallocate(page.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  ASSERT_TRUE(Ask(&client));
  EXPECT_TRUE(client.Info());
}

// Goal: the broker owns the pages, and they are freed with their clients. Method: its descriptors
// are counted before and after many clients, some of which disconnect and some of which are killed.
TEST_F(BrokerCountersTest, PagesGoWithTheirClients) {
  RawClient first(broker_.Socket("app"));
  ASSERT_TRUE(first.Hello());
  ASSERT_TRUE(Eventually([&] { return first.Info()->clients == 1; }));
  const size_t before = broker_.Descriptors();
  for (int i = 0; i < 50; ++i) {
    RawClient client(broker_.Socket("other"));
    ASSERT_TRUE(client.Hello());
    ASSERT_TRUE(Ask(&client));
    ASSERT_TRUE(Ask(&client)) << "again, the same";
    ClientProcess killed([&] {
      RawClient own(broker_.Socket("app"));
      return own.Hello() && own.Attach("weights") && Ask(&own) ? 0 : 1;
    });
    ASSERT_EQ(killed.result(), 0);
  }
  EXPECT_TRUE(
      Eventually([&] { return first.Info()->clients == 1 && broker_.Descriptors() <= before; }));
}

}  // namespace
}  // namespace gpushm::broker::testing
