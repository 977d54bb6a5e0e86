// The connection and everything that needs no GPU: look-ups, waits, and a broker that lies or is
// silent.
#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <sys/mman.h>

#include <optional>
#include <random>
#include <thread>

#include "platform/base/testing.h"
#include "runtime/client/c_api/support.h"
#include "runtime/client/make.h"
#include "runtime/client/names.h"
#include "runtime/client/testing/client_fixture.h"

namespace gpushm::client {
namespace {

using protocol::Kind;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

class SessionTest : public ConnectionTest {};

TEST_F(SessionTest, LooksUpAndLists) {
  Start();
  broker_->Add("weights", 5, 3 * kMiB, nullptr);
  broker_->Add("activations", 6, kMiB, nullptr, BufferState::kLoading);
  Open();
  auto info = Sized<gpushm_info>();
  ASSERT_EQ(gpushm_lookup(client_.get(), "weights", &info), GPUSHM_OK);
  EXPECT_STREQ(info.name, "weights");
  EXPECT_EQ(info.generation, 5u);
  EXPECT_EQ(info.size_bytes, 3 * kMiB);
  EXPECT_EQ(info.mapped_bytes, 4 * kMiB);
  EXPECT_EQ(info.transport, GPUSHM_TRANSPORT_VMM);
  EXPECT_EQ(info.state, GPUSHM_BUFFER_READY);
  EXPECT_EQ(gpushm_lookup(client_.get(), "nothing", &info), GPUSHM_NOT_FOUND);
  EXPECT_EQ(gpushm_lookup(client_.get(), "Not A Label", &info), GPUSHM_INVALID_ARGUMENT);

  gpushm_info infos[2];
  GPUSHM_INIT(&infos[0]);
  size_t count = 0;
  ASSERT_EQ(gpushm_list(client_.get(), infos, 2, &count), GPUSHM_OK);
  ASSERT_EQ(count, 2u);
  EXPECT_STREQ(infos[0].name, "activations");
  EXPECT_EQ(infos[0].state, GPUSHM_BUFFER_LOADING);
  EXPECT_STREQ(infos[1].name, "weights");
  ASSERT_EQ(gpushm_list(client_.get(), nullptr, 0, &count), GPUSHM_OK);
  EXPECT_EQ(count, 2u);
}

TEST_F(SessionTest, SaysWhenNobodyListens) {
  auto options = Sized<gpushm_open_options>();
  options.folder = folder_.path().c_str();
  options.timeout_ms = GPUSHM_DONT_WAIT;
  gpushm_client* client = nullptr;
  EXPECT_EQ(gpushm_open(&options, &client), GPUSHM_UNAVAILABLE);
  EXPECT_EQ(client, nullptr);
  EXPECT_THAT(gpushm_last_error()->text, HasSubstr("Remedy: "));
  options.timeout_ms = -7;
  EXPECT_EQ(gpushm_open(&options, &client), GPUSHM_INVALID_ARGUMENT);
}

TEST_F(SessionTest, OpenWaitsForTheBrokerToComeUp) {
  std::thread opener([&] { Open(); });
  Start();
  opener.join();
  EXPECT_NE(client_, nullptr);
}

TEST_F(SessionTest, SendsAPidfdWhenAsked) {
  Start();
  broker_->SetTwist([](const FakeRequest& request, FakeReply* reply) {
    if (request.kind == Kind::kHello && request.message->descriptors.empty()) {
      reply->Set(Status(Code::kUnsupported, "send a pidfd"));
    }
  });
  Open();
  EXPECT_EQ(broker_->connections(), 2u);
  EXPECT_EQ(BrokerInfo(), GPUSHM_OK);
}

TEST_F(SessionTest, RefusesOtherVersions) {
  Start();
  auto options = Sized<gpushm_open_options>();
  options.folder = folder_.path().c_str();
  gpushm_client* client = nullptr;
  // A broker with another protocol answers without a request number and closes the connection.
  broker_->SetTwist([](const FakeRequest&, FakeReply* reply) {
    reply->Set(Status(Code::kIncompatible, "speaks 2 to 3"));
    reply->header()->request_id = 0;
  });
  EXPECT_EQ(gpushm_open(&options, &client), GPUSHM_INCOMPATIBLE);
  broker_->SetTwist([](const FakeRequest&, FakeReply* reply) { reply->header()->version = 9; });
  EXPECT_EQ(gpushm_open(&options, &client), GPUSHM_INCOMPATIBLE);
  // The version of 1.0.0-rc.1, and a later one.
  for (const int version : {9, protocol::kMaxVersion + 1}) {
    broker_->SetTwist([version](const FakeRequest& request, FakeReply* reply) {
      if (request.kind != Kind::kHello) return;
      reply->body<protocol::HelloReply>()->version = static_cast<uint16_t>(version);
    });
    EXPECT_EQ(gpushm_open(&options, &client), GPUSHM_INCOMPATIBLE);
    EXPECT_THAT(gpushm_last_error()->text,
                AllOf(HasSubstr(Concat("chose protocol version ", version)),
                      HasSubstr("Remedy: make the pod again")));
  }
}

// Goal: no memfd that could kill its readers is ever mapped. Method: one without seals, one that is
// too short, none at all, and an ordinary descriptor.
TEST_F(SessionTest, RefusesBadRegistries) {
  const UniqueFd unsealed(memfd_create("unsealed", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(unsealed.get(), 1 << 20), 0);
  const UniqueFd tiny(memfd_create("tiny", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(fcntl(tiny.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  const UniqueFd other(open("/dev/null", O_RDONLY | O_CLOEXEC));
  Start();
  const size_t before = CountDescriptors();
  for (const std::vector<int>& descriptors : std::vector<std::vector<int>>{
           {unsealed.get()}, {tiny.get()}, {other.get()}, {}, {other.get(), other.get()}}) {
    broker_->SetTwist(
        [&](const FakeRequest&, FakeReply* reply) { reply->descriptors = descriptors; });
    auto options = Sized<gpushm_open_options>();
    options.folder = folder_.path().c_str();
    options.timeout_ms = GPUSHM_DONT_WAIT;
    gpushm_client* client = nullptr;
    EXPECT_NE(gpushm_open(&options, &client), GPUSHM_OK);
    EXPECT_EQ(client, nullptr);
    EXPECT_NE(gpushm_last_error()->status, GPUSHM_UNAVAILABLE) << gpushm_last_error()->text;
  }
  broker_.reset();
  EXPECT_LE(CountDescriptors(), before);
}

// Goal: a late reply is not taken for the reply to the next request. Method: one reply is withheld,
// and the next one is preceded by it.
TEST_F(SessionTest, TimesOutAndSkipsTheLateReply) {
  Start();
  Open();
  broker_->SetTwist([](const FakeRequest&, FakeReply* reply) { reply->silent = true; });
  auto options = Sized<gpushm_delete_options>();
  options.timeout_ms = 30;
  EXPECT_EQ(gpushm_delete(client_.get(), "weights", &options), GPUSHM_TIMEOUT);
  broker_->SetTwist(nullptr);
  EXPECT_EQ(BrokerInfo(), GPUSHM_OK);
  EXPECT_EQ(broker_->connections(), 1u) << "a timeout is no reason to reconnect";
}

TEST_F(SessionTest, ClosesOnBrokenRulesAndRecovers) {
  Start();
  Open();
  const std::vector<std::function<void(FakeReply*)>> lies = {
      [](FakeReply* r) { r->header()->magic ^= 1; },
      [](FakeReply* r) { r->header()->request_id += 1; },
      [](FakeReply* r) { r->header()->kind = static_cast<uint16_t>(Kind::kDetach) | 0x8000; },
      [](FakeReply* r) { r->header()->kind &= 0x7fff; },
      [](FakeReply* r) { r->header()->size_bytes += 1; },
      [](FakeReply* r) { r->header()->status = 99; },
      [](FakeReply* r) { r->header()->status = 3; },
      [](FakeReply* r) { r->bytes.resize(10); },
      [](FakeReply* r) { r->bytes.resize(5000); },
      [](FakeReply* r) { r->body<protocol::BrokerInfoReply>()->simulated = 2; },
      [](FakeReply* r) { r->descriptors = {0}; },
      [](FakeReply* r) { r->descriptors = {0, 0, 0, 0}; },
  };
  size_t connections = 1;
  const size_t before = CountDescriptors();
  for (const auto& lie : lies) {
    broker_->SetTwist([&](const FakeRequest& request, FakeReply* reply) {
      if (request.kind == Kind::kBrokerInfo) lie(reply);
    });
    EXPECT_EQ(BrokerInfo(), GPUSHM_CORRUPT) << "lie " << connections;
    broker_->SetTwist(nullptr);
    EXPECT_EQ(BrokerInfo(), GPUSHM_OK) << gpushm_last_error()->text;
    EXPECT_EQ(broker_->connections(), ++connections);
  }
  EXPECT_LE(CountDescriptors(), before + 2);
}

// Goal: if this process has no free descriptor for a reply, that is not reported as the broker's
// fault. The lease that came with the reply is not forgotten: the next connection reports it.
TEST_F(SessionTest, SaysThatNoDescriptorIsFree) {
  Start();
  Open();
  std::optional<gpushm::testing::FewDescriptors> few;
  broker_->SetTwist([&](const FakeRequest& request, FakeReply* reply) {
    if (request.kind != Kind::kBrokerInfo) return;
    reply->descriptors = {broker_->registry_fd()};
    few.emplace(0);
  });
  EXPECT_EQ(BrokerInfo(), GPUSHM_EXHAUSTED);
  few.reset();
  EXPECT_THAT(gpushm_last_error()->text, HasSubstr("raise RLIMIT_NOFILE"));
  broker_->SetTwist(nullptr);
  EXPECT_EQ(BrokerInfo(), GPUSHM_OK) << gpushm_last_error()->text;
  EXPECT_EQ(broker_->connections(), 2u);
}

TEST_F(SessionTest, TriesAgainWhenContended) {
  Start();
  Open();
  int refusals = 3;
  broker_->SetTwist([&](const FakeRequest& request, FakeReply* reply) {
    if (request.kind == Kind::kBrokerInfo && refusals-- > 0) {
      reply->Set(Status(Code::kContended, "a reply is unread"));
    }
  });
  EXPECT_EQ(BrokerInfo(), GPUSHM_OK);
  refusals = 1000;
  EXPECT_EQ(BrokerInfo(), GPUSHM_CONTENDED);
}

TEST_F(SessionTest, PassesTheBrokersErrorOn) {
  Start();
  Open();
  broker_->SetTwist([](const FakeRequest& request, FakeReply* reply) {
    if (request.kind == Kind::kDelete) reply->Set(Status(Code::kDenied, "not yours", "ask"));
  });
  EXPECT_EQ(gpushm_delete(client_.get(), "weights", nullptr), GPUSHM_DENIED);
  EXPECT_STREQ(gpushm_last_error()->text, "DENIED: delete \"weights\": not yours. Remedy: ask");
  EXPECT_STREQ(gpushm_last_error()->remedy, "ask");
}

TEST_F(SessionTest, ReconnectsToASuccessor) {
  Start(1);
  broker_->Add("weights", 5, kMiB, nullptr);
  Open();
  Start(2);
  broker_->Add("weights", 7, kMiB, nullptr);
  auto info = Sized<gpushm_broker_info>();
  ASSERT_EQ(gpushm_broker_get_info(client_.get(), &info), GPUSHM_OK) << gpushm_last_error()->text;
  EXPECT_EQ(info.broker_epoch, 2u);
  auto buffer = Sized<gpushm_info>();
  ASSERT_EQ(gpushm_lookup(client_.get(), "weights", &buffer), GPUSHM_OK);
  EXPECT_EQ(buffer.generation, 7u);
}

// Goal: a request that may not be carried out twice is not sent twice. Method: a broker that dies
// at requests.
TEST_F(SessionTest, RepeatsOnlyWhatMayBeRepeated) {
  Start();
  Open();
  broker_->SetTwist([](const FakeRequest& request, FakeReply* reply) {
    reply->hang_up = request.kind != Kind::kHello && request.connection % 2 == 1;
  });
  EXPECT_EQ(gpushm_delete(client_.get(), "weights", nullptr), GPUSHM_UNAVAILABLE);
  EXPECT_EQ(broker_->requests(Kind::kDelete), 1u);
  EXPECT_EQ(BrokerInfo(), GPUSHM_OK);  // Connection 2.
  broker_->SetTwist([](const FakeRequest& request, FakeReply* reply) {
    reply->hang_up = request.kind != Kind::kHello && request.connection % 2 == 0;
  });
  EXPECT_EQ(BrokerInfo(), GPUSHM_OK);
  EXPECT_EQ(broker_->requests(Kind::kBrokerInfo), 3u);
}

TEST_F(SessionTest, WaitsForNamesStatesAndGenerations) {
  Start();
  Open();
  auto options = Sized<gpushm_wait_options>();
  options.timeout_ms = GPUSHM_DONT_WAIT;
  EXPECT_EQ(gpushm_wait(client_.get(), "weights", 0, &options, nullptr), GPUSHM_NOT_FOUND);
  options.timeout_ms = 20;
  EXPECT_EQ(gpushm_wait(client_.get(), "weights", 0, &options, nullptr), GPUSHM_TIMEOUT);
  options.timeout_ms = kPatienceMs;
  auto info = Sized<gpushm_info>();
  std::thread waiter([&] {
    EXPECT_EQ(gpushm_wait(client_.get(), "weights", 6, &options, &info), GPUSHM_OK)
        << gpushm_last_error()->text;
  });
  broker_->Add("weights", 5, kMiB, nullptr);
  broker_->Add("weights", 6, kMiB, nullptr, BufferState::kLoading);
  broker_->SetState("weights", BufferState::kReady);
  waiter.join();
  EXPECT_EQ(info.generation, 6u);
  EXPECT_EQ(info.state, GPUSHM_BUFFER_READY);
  broker_->SetState("weights", BufferState::kFailed);
  EXPECT_EQ(gpushm_wait(client_.get(), "weights", 0, &options, nullptr), GPUSHM_SYSTEM);
}

TEST_F(SessionTest, WaitNoticesThatTheBrokerIsGone) {
  Start();
  Open();
  broker_.reset();
  auto options = Sized<gpushm_wait_options>();
  options.timeout_ms = 60;
  EXPECT_EQ(gpushm_wait(client_.get(), "weights", 0, &options, nullptr), GPUSHM_UNAVAILABLE);
  options.timeout_ms = kPatienceMs;
  std::thread waiter([&] {
    EXPECT_EQ(gpushm_wait(client_.get(), "weights", 0, &options, nullptr), GPUSHM_OK)
        << gpushm_last_error()->text;
  });
  Start(2);
  broker_->Add("weights", 5, kMiB, nullptr);
  waiter.join();
}

TEST_F(SessionTest, TakesStructsOfOtherSizes) {
  Start();
  broker_->Add("weights", 5, kMiB, nullptr);
  Open();
  struct {
    gpushm_info info;
    unsigned char more[16];
  } larger;
  std::memset(&larger, 0xff, sizeof larger);
  larger.info.struct_size = sizeof larger;
  ASSERT_EQ(gpushm_lookup(client_.get(), "weights", &larger.info), GPUSHM_OK);
  EXPECT_EQ(larger.more[15], 0) << "what this library does not know is zero";
  EXPECT_EQ(larger.info.struct_size, sizeof larger);
  auto smaller = Sized<gpushm_info>();
  smaller.struct_size = offsetof(gpushm_info, size_bytes);
  smaller.size_bytes = 77;
  ASSERT_EQ(gpushm_lookup(client_.get(), "weights", &smaller), GPUSHM_OK);
  EXPECT_EQ(smaller.generation, 5u);
  EXPECT_EQ(smaller.size_bytes, 77u) << "beyond the caller's struct";
  smaller.struct_size = 0;
  EXPECT_EQ(gpushm_lookup(client_.get(), "weights", &smaller), GPUSHM_INVALID_ARGUMENT);

  struct {
    gpushm_wait_options options;
    uint64_t more;
  } newer{};
  newer.options.struct_size = sizeof newer;
  EXPECT_EQ(gpushm_wait(client_.get(), "weights", 0, &newer.options, nullptr), GPUSHM_OK);
  newer.more = 1;
  EXPECT_EQ(gpushm_wait(client_.get(), "weights", 0, &newer.options, nullptr),
            GPUSHM_INVALID_ARGUMENT);
}

TEST_F(SessionTest, ErrorsBelongToTheThread) {
  Start();
  Open();
  auto info = Sized<gpushm_info>();
  EXPECT_EQ(gpushm_lookup(client_.get(), "nothing", &info), GPUSHM_NOT_FOUND);
  std::thread([] { EXPECT_EQ(gpushm_last_error()->status, GPUSHM_OK); }).join();
  EXPECT_EQ(gpushm_last_error()->status, GPUSHM_NOT_FOUND);
}

// Goal: whatever a broker answers, calls end, nothing crashes and no descriptor leaks. Method: 10^5
// replies with random bytes changed, cut short, or with descriptors added.
TEST_F(SessionTest, SurvivesRandomReplies) {
  Start();
  broker_->Add("weights", 5, kMiB, nullptr);
  Open();
  ASSERT_EQ(BrokerInfo(), GPUSHM_OK);
  const size_t before = CountDescriptors();
  SCOPED_TRACE(testing::StrideNote());
  std::mt19937 random(static_cast<unsigned>(20261121 + testing::Offset()));
  const auto pick = [&](size_t below) {
    return std::uniform_int_distribution<size_t>(0, below - 1)(random);
  };
  std::atomic<bool> on{true};
  broker_->SetTwist([&](const FakeRequest& request, FakeReply* reply) {
    if (!on || pick(4) == 0) return;
    // Each connection asks for counters, and mostly gets them, so that the others have their turn.
    if (request.kind == Kind::kCounters && pick(8) != 0) return;
    for (size_t i = pick(4); i-- > 0 && !reply->bytes.empty();) {
      // Mostly near the front, where the fields are.
      const size_t at = pick(2) == 0 ? pick(std::min<size_t>(reply->bytes.size(), 64))
                                     : pick(reply->bytes.size());
      reply->bytes[at] = static_cast<std::byte>(pick(256));
    }
    switch (pick(12)) {
      case 0:
        reply->bytes.resize(1 + pick(reply->bytes.size() + 100));
        break;
      case 1:
        reply->descriptors.assign(1 + pick(4), 0);
        break;
      case 2:
        reply->descriptors.clear();
        break;
      case 3:
        reply->hang_up = true;
        break;
      default:
        break;
    }
  });
  const int rounds = 100'000 / testing::Stride();
  Client* const client = FromHandle(client_.get());
  for (int round = 0; round < rounds; ++round) {
    const Wait wait = Wait::ForMs(2);  // A reply with a wrong number counts as no reply.
    switch (round % 3) {
      case 0:
        (void)Broker(client, wait);
        break;
      case 1:
        (void)Holders(client, "", wait);
        break;
      default:
        (void)Delete(client, "weights", wait);
        break;
    }
  }
  on = false;
  EXPECT_EQ(BrokerInfo(), GPUSHM_OK) << gpushm_last_error()->text;
  EXPECT_LE(CountDescriptors(), before + 2);
}

}  // namespace
}  // namespace gpushm::client
