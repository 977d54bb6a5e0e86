// Goal: pages of signals, barriers and rings obey the rules of buffers and their own: a reader
// cannot write to one, host memory is limited, and the end of a process ends its cells. Method: the
// real broker, and clients that speak the protocol by hand.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "contract/limits.h"
#include "contract/sync/page.h"
#include "platform/base/alarm.h"
#include "platform/base/sealed_memory.h"
#include "platform/base/testing.h"
#include "sidecar/broker/testing/raw_client.h"

namespace gpushm::broker {
namespace {

using protocol::Kind;
using testing::BrokerProcess;
using testing::ClientProcess;
using testing::RawClient;

constexpr uint64_t kLongMs = 20'000;

Result<protocol::MakeReply> Make(RawClient* client, const std::string& name, uint64_t bytes,
                                 uint32_t flags = 0, uint64_t after = 0) {
  return client->Call<protocol::MakeReply>(
      Kind::kMakePage, protocol::MakePageRequest{.name = protocol::ToNameField(name),
                                                 .size_bytes = bytes,
                                                 .flags = flags,
                                                 .reserved = 0,
                                                 .after_generation = after});
}

// Of the page in the last reply.
Result<sync::Reading> FirstCell(RawClient* client) {
  const auto mapping =
      MapSealed(client->descriptors().at(0), "page", 4096, 4096, Writers::kAll, /*read_only=*/true);
  if (!mapping) return std::unexpected(mapping.error());
  const auto page = sync::Page::Look(mapping->address(), mapping->bytes());
  if (!page) return std::unexpected(page.error());
  EXPECT_EQ(page->kind(), sync::Kind::kSignal);
  EXPECT_EQ(page->cells(), 1U);
  return sync::Read(page->cell(0));
}

Result<protocol::EmptyReply> Publish(RawClient* client, uint64_t lease) {
  return client->Call<protocol::EmptyReply>(Kind::kPublish, protocol::PublishRequest{lease});
}

class PagesTest : public ::testing::Test {
 protected:
  PagesTest() : broker_(folder_.path(), testing::TwoContainers()), client_(broker_.Socket("app")) {
    EXPECT_TRUE(client_.Hello());
  }

  gpushm::testing::TempFolder folder_;
  BrokerProcess broker_;
  RawClient client_;
};

TEST_F(PagesTest, AReaderCannotWrite) {
  const auto made = Make(&client_, "ready", 100);
  ASSERT_TRUE(made) << made.error().ToString();
  EXPECT_EQ(made->mapped_bytes, 4096U);
  ASSERT_EQ(client_.descriptors().size(), 1U);
  const UniqueFd writable = std::move(client_.descriptors()[0]);
  EXPECT_TRUE(MapSealed(writable, "page", 4096, 4096, Writers::kAll));
  ASSERT_TRUE(Publish(&client_, made->lease_id));
  RawClient reader(broker_.Socket("app"));
  ASSERT_TRUE(reader.Hello());
  const auto attached = reader.Attach("ready", 1);
  ASSERT_TRUE(attached) << attached.error().ToString();
  ASSERT_EQ(reader.descriptors().size(), 1U);
  const int fd = reader.descriptors()[0].get();
  EXPECT_EQ(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_TRUE(
      MapSealed(reader.descriptors()[0], "page", 4096, 4096, Writers::kAll, /*read_only=*/true));
}

// Regression: a container that may not write a signal could reopen the page that it had for reading
// through /proc/self/fd for writing, because a memfd starts with mode 0777.
TEST_F(PagesTest, AnotherUsersReaderCannotOpenThePageForWriting) {
  if (getuid() != 0) GTEST_SKIP() << "needs root, to become another user than the broker's";
  const auto made = Make(&client_, "ready", 100);
  ASSERT_TRUE(made && Publish(&client_, made->lease_id));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (setgid(31'343) != 0 || setuid(31'343) != 0) std::_Exit(2);
    RawClient reader(broker_.Socket("app"));
    if (!reader.Hello()) std::_Exit(3);
    const std::string registry = Concat("/proc/self/fd/", reader.descriptors().at(0).get());
    if (open(registry.c_str(), O_RDWR | O_CLOEXEC) >= 0) std::_Exit(4);
    if (!reader.Attach("ready", 1)) std::_Exit(5);
    const std::string page = Concat("/proc/self/fd/", reader.descriptors().at(0).get());
    std::_Exit(open(page.c_str(), O_RDWR | O_CLOEXEC) < 0 && errno == EACCES ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(PagesTest, HostMemoryHasItsLimit) {
  const uint64_t used_bytes = client_.Info()->used_bytes;
  std::vector<uint64_t> leases;
  for (int i = 0; i < 8; ++i) {
    const auto made = Make(&client_, Concat("page-", i), limits::kPageBytes);
    ASSERT_TRUE(made) << made.error().ToString();
    leases.push_back(made->lease_id);
  }
  const auto refused = Make(&client_, "more", 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kExhausted);
  ASSERT_TRUE(client_.Detach(leases[3])) << "unpublished: it goes with its maker";
  EXPECT_TRUE(Make(&client_, "more", 1));
  EXPECT_EQ(client_.Info()->used_bytes, used_bytes) << "none of it is the pool's";
}

TEST_F(PagesTest, GenerationsFollowEachOther) {
  const auto first = Make(&client_, "ready", 4096);
  ASSERT_TRUE(first && Publish(&client_, first->lease_id));
  EXPECT_EQ(Make(&client_, "ready", 4096).error().code(), Code::kAlreadyExists);
  EXPECT_EQ(Make(&client_, "ready", 4096, 0, first->generation + 1).error().code(), Code::kStale);
  const auto second = Make(&client_, "ready", 8192, 0, first->generation);
  ASSERT_TRUE(second) << second.error().ToString();
  EXPECT_EQ(Make(&client_, "ready", 4096, 0, first->generation).error().code(), Code::kBusy);
  ASSERT_TRUE(Publish(&client_, second->lease_id));
  EXPECT_EQ(Make(&client_, "ready", 4096, 0, first->generation).error().code(), Code::kStale);
}

// ---- alarms

Result<protocol::AlarmReply> GetAlarm(RawClient* client, uint64_t lease) {
  return client->Call<protocol::AlarmReply>(Kind::kAlarm, protocol::AlarmRequest{lease});
}

// An epoll instance with the alarm of the client's last reply, as a listener has it.
class Listener {
 public:
  explicit Listener(RawClient* client)
      : alarm_(std::move(client->descriptors().at(0))), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    epoll_event event{.events = EPOLLIN | EPOLLET, .data = {}};
    EXPECT_EQ(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, alarm_.get(), &event), 0);
    Rings(0);  // It may have rung before.
  }
  bool Rings(int wait_ms) const {
    epoll_event event{};
    return epoll_wait(epoll_.get(), &event, 1, wait_ms) == 1;
  }
  int alarm() const { return alarm_.get(); }

 private:
  UniqueFd alarm_;
  UniqueFd epoll_;
};

class AlarmsTest : public PagesTest {
 protected:
  AlarmsTest() {
    const auto made = Make(&client_, "ring", sync::BytesFor(4, 0), protocol::kFlagWritersAll);
    EXPECT_TRUE(made) << made.error().ToString();
    lease_ = made->lease_id;
    auto mapping =
        MapSealed(client_.descriptors()[0], "page", 4096, limits::kPageBytes, Writers::kAll);
    EXPECT_TRUE(mapping);
    mapping_ = std::move(*mapping);
    page_ = sync::Page::Make(mapping_.address(), mapping_.bytes(), sync::Kind::kBarrier, 4, 0, {});
    EXPECT_TRUE(Publish(&client_, lease_));
    EXPECT_TRUE(other_.Hello());
    const auto attached = other_.Attach("ring", 1);
    EXPECT_TRUE(attached);
    listener_lease_ = attached->lease_id;
  }
  uint64_t Number() const { return page_->alarm().load(); }

  uint64_t lease_ = 0;
  uint64_t listener_lease_ = 0;
  Mapping mapping_;
  std::optional<sync::Page> page_;
  RawClient other_{broker_.Socket("app")};
};

TEST_F(AlarmsTest, AListenerHearsWhoHasTheNumber) {
  EXPECT_EQ(Number(), 0U);
  const auto listens = GetAlarm(&other_, listener_lease_);
  ASSERT_TRUE(listens) << listens.error().ToString();
  ASSERT_NE(listens->number, 0U);
  EXPECT_EQ(Number(), listens->number);
  const Listener listener(&other_);
  const auto rings = GetAlarm(&client_, lease_);
  ASSERT_TRUE(rings) << rings.error().ToString();
  EXPECT_EQ(rings->number, listens->number);
  EXPECT_FALSE(listener.Rings(50));
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(RingAlarm(client_.descriptors().at(0).get()));
    EXPECT_TRUE(listener.Rings(kLongMs));
    EXPECT_FALSE(listener.Rings(20)) << "once for each ring";
  }
}

// A listener can neither fill the alarm nor make it block.
TEST_F(AlarmsTest, AListenerCannotHoldUpWhoRings) {
  ASSERT_TRUE(GetAlarm(&other_, listener_lease_));
  const Listener listener(&other_);
  ASSERT_EQ(fcntl(listener.alarm(), F_SETFL, 0), 0) << "clears O_NONBLOCK for all";
  ASSERT_TRUE(GetAlarm(&client_, lease_));
  const int alarm = client_.descriptors().at(0).get();
  for (int i = 0; i < 100'000; ++i) ASSERT_TRUE(RingAlarm(alarm));
  EXPECT_TRUE(listener.Rings(kLongMs));
}

// A process that ends ends its own cells, and whoever waits for them.
TEST_F(AlarmsTest, TheEndOfAParticipantRings) {
  const std::string socket = broker_.Socket("app");
  ASSERT_TRUE(sync::Claim(page_->cell(1), lease_, false));
  ClientProcess writer([&] {
    RawClient client(socket);
    if (!client.Hello()) return 1;
    const auto attached = client.Attach("ring", 2);
    if (!attached || !sync::Claim(page_->cell(0), attached->lease_id, false)) return 2;
    page_->cell(0).value.store(6, std::memory_order_release);
    return 0;
  });
  ASSERT_EQ(writer.result(), 0);
  ASSERT_TRUE(GetAlarm(&other_, listener_lease_));
  const Listener listener(&other_);
  writer.Kill();
  EXPECT_TRUE(listener.Rings(kLongMs));
  EXPECT_EQ(sync::Read(page_->cell(0)).state, sync::CellState::kDied);
  EXPECT_EQ(sync::Read(page_->cell(0)).value, 6U);
  EXPECT_EQ(sync::Read(page_->cell(1)).state, sync::CellState::kLive);
  ASSERT_TRUE(client_.Detach(lease_));
  EXPECT_EQ(sync::Read(page_->cell(1)).state, sync::CellState::kLeft);
}

TEST_F(AlarmsTest, TheNumberStaysWhileThePageDoes) {
  ASSERT_TRUE(GetAlarm(&other_, listener_lease_));
  const uint64_t number = Number();
  ASSERT_TRUE(other_.Detach(listener_lease_));
  EXPECT_EQ(Number(), number) << "nobody keeps account of who still waits";
  const auto again = GetAlarm(&client_, lease_);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->number, number);
}

// An alarm goes with its page, also if the header was overwritten.
TEST_F(AlarmsTest, APageOfRubbishLeavesNoAlarmBehind) {
  const auto listen = [&](const std::string& name) {
    const auto made = Make(&client_, name, 4096);
    ASSERT_TRUE(made) << made.error().ToString();
    const auto mapping = MapSealed(client_.descriptors()[0], "page", 4096, 4096, Writers::kAll);
    ASSERT_TRUE(mapping);
    sync::Page::Make(mapping->address(), 4096, sync::Kind::kSignal, 1, 0, {});
    ASSERT_TRUE(GetAlarm(&client_, made->lease_id));
    std::memset(mapping->address(), 0xff, 4096);
    ASSERT_TRUE(client_.Detach(made->lease_id));
  };
  listen("first");
  const size_t before = broker_.Descriptors();
  for (int i = 0; i < 10; ++i) listen(Concat("page-", i));
  // Memory is closed by another thread.
  EXPECT_TRUE(testing::Eventually([&] { return broker_.Descriptors() <= before + 2; }));
}

TEST_F(AlarmsTest, ChangedNamesRing) {
  ASSERT_TRUE(GetAlarm(&other_, 0));
  const Listener listener(&other_);
  EXPECT_FALSE(listener.Rings(50));
  ASSERT_TRUE(client_.Create("made", 1, protocol::kFlagAttach));
  EXPECT_TRUE(listener.Rings(kLongMs));
}

TEST_F(AlarmsTest, ALeaseOfAnotherOrOnABufferIsRefused) {
  const auto buffer = client_.Create("made", 1, protocol::kFlagAttach);
  ASSERT_TRUE(buffer);
  for (const uint64_t lease : {buffer->lease_id, listener_lease_, uint64_t{12345}}) {
    const auto refused = GetAlarm(&client_, lease);
    ASSERT_FALSE(refused) << lease;
    EXPECT_EQ(refused.error().code(), Code::kNotFound) << refused.error().ToString();
  }
  std::memset(mapping_.address(), 0xff, 4096);
  EXPECT_EQ(GetAlarm(&client_, lease_).error().code(), Code::kInvalidArgument);
  EXPECT_TRUE(client_.Info());
}

testing::BrokerSettings WithSignals() {
  testing::BrokerSettings settings = testing::TwoContainers();
  settings.buffers =
      "signals.gpushm.io/ready: {writers: [app]}\n"
      "signals.gpushm.io/private: {containers: [app]}\n"
      "signals.gpushm.io/stop:\n";
  return settings;
}

class DeclaredSignalsTest : public ::testing::Test {
 protected:
  DeclaredSignalsTest()
      : broker_(folder_.path(), WithSignals()),
        app_(broker_.Socket("app")),
        other_(broker_.Socket("other")) {
    EXPECT_TRUE(broker_.ready()) << broker_.log();
    EXPECT_TRUE(app_.Hello() && other_.Hello());
  }

  gpushm::testing::TempFolder folder_;
  BrokerProcess broker_;
  RawClient app_;
  RawClient other_;
};

TEST_F(DeclaredSignalsTest, AreThereFromTheStartAndOfNobody) {
  for (const char* const name : {"ready", "stop"}) {
    const auto attached = other_.Attach(name, 1);
    ASSERT_TRUE(attached) << attached.error().ToString();
    const auto reading = FirstCell(&other_);
    ASSERT_TRUE(reading) << reading.error().ToString();
    EXPECT_EQ(reading->state, sync::CellState::kFree);
    EXPECT_EQ(reading->value, 0U);
  }
  EXPECT_EQ(app_.Info()->used_bytes, 0U) << "none of it is GPU memory";
}

TEST_F(DeclaredSignalsTest, RightsHoldForWhatIsThereAndForWhatFollows) {
  ASSERT_TRUE(app_.Attach("ready", 1));
  const auto holders = app_.Call<protocol::HoldersReply>(
      Kind::kHolders, protocol::HoldersRequest{protocol::ToNameField("ready"), 0});
  ASSERT_TRUE(holders);
  const uint64_t page = holders->entries[0].generation;
  const auto expect_denied = [](const auto& denied) {
    ASSERT_FALSE(denied);
    EXPECT_EQ(denied.error().code(), Code::kDenied) << denied.error().ToString();
    EXPECT_NE(denied.error().remedy().find("signals.gpushm.io/"), std::string::npos);
  };
  expect_denied(other_.Attach("private", 1));
  expect_denied(other_.Attach("ready", 2));
  expect_denied(Make(&other_, "ready", 4096, protocol::kFlagWritersAll, page));
  EXPECT_EQ(Make(&app_, "ready", 4096).error().code(), Code::kAlreadyExists);
  EXPECT_EQ(app_.Delete("ready").error().code(), Code::kDenied);
  const auto next = Make(&app_, "ready", 4096, protocol::kFlagWritersAll, page);
  ASSERT_TRUE(next) << next.error().ToString();
  ASSERT_TRUE(Publish(&app_, next->lease_id) && app_.Detach(next->lease_id));
  const auto denied = other_.Attach("ready", 2);
  ASSERT_FALSE(denied) << "what its maker says changes nothing";
  EXPECT_EQ(denied.error().code(), Code::kDenied);
  EXPECT_TRUE(other_.Attach("ready", 1));
}

TEST_F(DeclaredSignalsTest, HaveOneWriterAtATime) {
  const auto first = app_.Attach("stop", 2);
  ASSERT_TRUE(first) << first.error().ToString();
  EXPECT_EQ(other_.Attach("stop", 2).error().code(), Code::kBusy);
  ASSERT_TRUE(app_.Detach(first->lease_id));
  EXPECT_TRUE(other_.Attach("stop", 2));
}

// Goal: a process that is killed before it claims what it attached leaves the signal as it was.
TEST_F(DeclaredSignalsTest, AWriterThatNeverClaimsLeavesItFree) {
  const std::string socket = broker_.Socket("app");
  ClientProcess writer([&] {
    RawClient client(socket);
    return client.Hello() && client.Attach("stop", 2) ? 0 : 1;
  });
  ASSERT_EQ(writer.result(), 0);
  writer.Kill();
  ASSERT_TRUE(testing::Eventually([&] { return other_.Attach("stop", 2).has_value(); }));
  const auto reading = FirstCell(&other_);
  ASSERT_TRUE(reading) << reading.error().ToString();
  EXPECT_EQ(reading->state, sync::CellState::kFree);
}

}  // namespace
}  // namespace gpushm::broker
