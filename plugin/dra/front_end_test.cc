#include "plugin/dra/front_end.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "platform/daemon/unix_socket.h"
#include "platform/kubernetes/testing/api_server.h"
#include "plugin/dra/testing/kubelet_client.h"

namespace gpushm::plugin::dra {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Health;
using testing::HealthList;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr char kUid[] = "11111111-2222-3333-4444-555555555555";
constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr int64_t kLongMs = 20'000;

class FakeHandler : public Handler {
 public:
  Result<void> PrepareClaim(const binding::ClaimedGpus& claim, const Deadline&,
                            const std::function<bool()>& given_up) override {
    std::unique_lock lock(mutex);
    ++prepares;
    last = claim;
    changed.notify_all();
    while (hold && !given_up()) changed.wait_for(lock, std::chrono::milliseconds(10));
    if (given_up()) ++abandoned;
    changed.notify_all();
    if (error) return std::unexpected(*error);
    return {};
  }
  Result<void> UnprepareClaim(const std::string& uid, const Deadline&) override {
    const std::lock_guard lock(mutex);
    unprepared.push_back(uid);
    if (error) return std::unexpected(*error);
    return {};
  }
  bool WaitFor(const std::function<bool()>& is_so) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(20), is_so);
  }

  std::mutex mutex;
  std::condition_variable changed;
  binding::ClaimedGpus last;
  int prepares = 0;
  int abandoned = 0;
  bool hold = false;
  std::vector<std::string> unprepared;
  std::optional<Status> error;
};

template <typename Check>
bool WaitUntil(Check is_so, int64_t timeout_ms = 20'000) {
  const Deadline deadline = Deadline::AfterMs(timeout_ms);
  while (!is_so()) {
    if (deadline.Passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // sleep: polls
  }
  return true;
}

class FrontEndTest : public ::testing::Test {
 protected:
  FrontEndTest() : kubelet_(folder_ / "registry") {
    for (const char* const name : {"registry", "plugins"}) {
      std::filesystem::create_directories(folder_ / name);
    }
    Start();
  }

  FrontEnd::Options Options() const {
    return {.node = "node0",
            .registry_folder = folder_ / "registry",
            .plugins_folder = folder_ / "plugins",
            .api = server_.Address(),
            .times = {.prepare_ms = 5000,
                      .slices_ms = 50,
                      .eager_ms = 20,
                      .eager_for_ms = 1000,
                      .look_ms = 20,
                      .health_ms = health_ms_,
                      .backoff_ms = 5}};
  }
  static Offer TwoGpus() {
    Offer offer;
    for (uint32_t i = 0; i < 2; ++i) {
      const std::string uuid = Concat("GPU-", i);
      offer.devices.push_back({.uuid = uuid, .name = "Simulated GPU", .index = i});
      offer.gpus.push_back({.uuid = uuid, .units = 15, .tokens = 8, .bytes = 15 * kGiB});
    }
    return offer;
  }
  // The second GPU is sick for that reason.
  static Offer Sick(const std::string& reason) {
    Offer offer = TwoGpus();
    offer.gpus[1].healthy = false;
    offer.reasons["GPU-1"] = reason;
    return offer;
  }
  void Start() {
    auto started = FrontEnd::Start(Options(), &handler_);
    ASSERT_TRUE(started) << started.error().ToString();
    front_end_ = std::move(*started);
    front_end_->SetOffer(TwoGpus());
  }
  void Register() {
    ASSERT_TRUE(kubelet_.GetInfo());
    ASSERT_TRUE(kubelet_.Notify(true));
  }

  gpushm::testing::TempFolder folder_;
  kubernetes::testing::ApiServer server_;
  testing::KubeletClient kubelet_;
  FakeHandler handler_;
  int64_t health_ms_ = 60'000;  // So that lists are sent for no other reason than a change.
  std::unique_ptr<FrontEnd> front_end_;
};

TEST_F(FrontEndTest, TheKubeletLearnsWhatItIs) {
  const auto info = kubelet_.GetInfo();
  ASSERT_TRUE(info) << info.error().ToString();
  EXPECT_EQ(info->type, "DRAPlugin");
  EXPECT_EQ(info->name, "gpushm.io");
  EXPECT_THAT(info->versions, ElementsAre("v1.DRAPlugin", "v1alpha1.DRAResourceHealth"));
  EXPECT_EQ(info->endpoint, folder_ / "plugins/gpushm.io/dra.sock");
}

// Goal: invariant 1. Method: after GetInfo and a refusal, nobody has asked the API server anything;
// after the kubelet's yes the slices are there.
TEST_F(FrontEndTest, SlicesFollowTheRegistration) {
  ASSERT_TRUE(kubelet_.GetInfo());
  ASSERT_TRUE(kubelet_.Notify(false));
  EXPECT_EQ(server_.requests(), 0);
  EXPECT_FALSE(front_end_->state().registered);
  ASSERT_TRUE(kubelet_.Notify(true));
  EXPECT_TRUE(WaitUntil([&] { return front_end_->state().published; }));
  ASSERT_EQ(server_.Slices().size(), 1U);
  EXPECT_EQ(server_.Slices()[0]["spec"]["devices"][0]["name"], "gpu-0");
}

TEST_F(FrontEndTest, DeletedSlicesComeBack) {
  Register();
  ASSERT_TRUE(WaitUntil([&] { return front_end_->state().published; }));
  server_.DeleteSlices();
  EXPECT_TRUE(WaitUntil([&] { return server_.Slices().size() == 1; }));
}

TEST_F(FrontEndTest, AnAnswerHasADeviceForEachResultOfTheClaim) {
  server_.PutClaim("claim", kUid, "node0", "gpu-1", "10Gi");
  const auto devices = kubelet_.Prepare("claim", kUid);
  ASSERT_TRUE(devices) << devices.error().ToString();
  const testing::PreparedDevice broker{
      .requests = {"broker"},
      .pool = "node0",
      .device = "gpu-1",
      .cdi_names = {"gpushm.io/driver=files", Concat("gpushm.io/claim=", kUid, "-broker")},
      .share_id = "share-broker"};
  const testing::PreparedDevice app{
      .requests = {"app"},
      .pool = "node0",
      .device = "gpu-1",
      .cdi_names = {"gpushm.io/driver=files", Concat("gpushm.io/claim=", kUid, "-app")},
      .share_id = "share-app"};
  EXPECT_THAT(*devices, ElementsAre(broker, app));
  EXPECT_EQ(handler_.last.uid, kUid);
  EXPECT_THAT(handler_.last.gpus, ElementsAre("GPU-1"));
  EXPECT_EQ(handler_.last.bytes, 10 * kGiB);
  EXPECT_EQ(handler_.last.pod.ToString(), "default/pod-of-claim");
}

// An API server that restarts is waited for, because the kubelet repeats a failed call only after
// more than a minute.
TEST_F(FrontEndTest, AnApiServerThatIsBusyIsAskedAgain) {
  server_.PutClaim("claim", kUid, "node0", "gpu-1", "10Gi");
  server_.FailNext(503, 5);
  const auto devices = kubelet_.Prepare("claim", kUid);
  EXPECT_TRUE(devices) << devices.error().ToString();
  EXPECT_EQ(server_.requests(), 6);
}

TEST_F(FrontEndTest, ErrorsReachTheKubeletInPlainWords) {
  EXPECT_THAT(kubelet_.Prepare("claim", kUid).error().what(), HasSubstr("404"));
  server_.PutClaim("claim", "99999999-2222-3333-4444-555555555555", "node0", "gpu-1", "10Gi");
  EXPECT_THAT(kubelet_.Prepare("claim", kUid).error().what(), HasSubstr("made again"));
  server_.PutClaim("claim", kUid, "node1", "gpu-1", "10Gi");
  EXPECT_THAT(kubelet_.Prepare("claim", kUid).error().what(), HasSubstr("not on this node"));
  server_.PutClaim("claim", kUid, "node0", "gpu-7", "10Gi");
  EXPECT_THAT(kubelet_.Prepare("claim", kUid).error().what(), HasSubstr("gpu-7"));
  EXPECT_EQ(handler_.prepares, 0);
  EXPECT_THAT(kubelet_.Prepare("claim", "../../x").error().what(), HasSubstr("invalid claim"));
  EXPECT_THAT(kubelet_.Unprepare("claim", "../../x").error().what(), HasSubstr("invalid claim"));
  EXPECT_THAT(handler_.unprepared, IsEmpty());
}

TEST_F(FrontEndTest, UnprepareAsksNobodyElse) {
  ASSERT_TRUE(kubelet_.Unprepare("claim", kUid));
  EXPECT_THAT(handler_.unprepared, ElementsAre(kUid));
  EXPECT_EQ(server_.requests(), 0);
  handler_.error.emplace(Code::kBusy, "its broker still runs");
  EXPECT_THAT(kubelet_.Unprepare("claim", kUid).error().what(), HasSubstr("still runs"));
}

// The kubelet gives up a call after 45 s; nobody must go on waiting for it.
TEST_F(FrontEndTest, ACallThatTheKubeletGaveUpEnds) {
  server_.PutClaim("claim", kUid, "node0", "gpu-1", "10Gi");
  handler_.hold = true;
  EXPECT_FALSE(kubelet_.Prepare("claim", kUid, /*timeout_ms=*/300));
  EXPECT_TRUE(handler_.WaitFor([&] { return handler_.abandoned == 1; }));
}

TEST_F(FrontEndTest, ARemovedSocketComesBack) {
  ASSERT_TRUE(kubelet_.GetInfo());
  std::filesystem::remove(folder_ / "registry/gpushm.io-reg.sock");
  std::filesystem::remove_all(folder_ / "plugins/gpushm.io");
  EXPECT_TRUE(kubelet_.GetInfo());
  EXPECT_TRUE(WaitUntil([&] { return SomeoneAccepts(folder_ / "plugins/gpushm.io/dra.sock"); }));
}

// In an update the next plugin serves on the other names, and then the first one ends.
TEST_F(FrontEndTest, TwoServeSideBySide) {
  ASSERT_TRUE(kubelet_.GetInfo());
  EXPECT_EQ(FrontEnd::CheckAlone(folder_ / "registry").error().code(), Code::kAlreadyExists);
  auto second = FrontEnd::Start(Options(), &handler_);
  ASSERT_TRUE(second) << second.error().ToString();
  EXPECT_TRUE(WaitUntil([&] { return SomeoneAccepts(folder_ / "registry/gpushm.io-2-reg.sock"); }));
  const auto third = FrontEnd::Start(Options(), &handler_);
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code(), Code::kAlreadyExists);
  front_end_.reset();
  EXPECT_FALSE(std::filesystem::exists(folder_ / "registry/gpushm.io-reg.sock"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "registry/gpushm.io-2-reg.sock"));
}

// A call that reaches the first plugin after it has closed its book must not fail: the kubelet
// would repeat it after more than a minute.
TEST_F(FrontEndTest, ACallDuringAnUpdateReachesTheNextPlugin) {
  server_.PutClaim("claim", kUid, "node0", "gpu-1", "10Gi");
  ASSERT_TRUE(kubelet_.GetInfo());
  handler_.error.emplace(Code::kUnavailable, "this plugin is shutting down");
  EXPECT_FALSE(kubelet_.Prepare("claim", kUid)) << "it hands over to nobody yet";
  front_end_->HandOver();
  auto waits = std::async(std::launch::async, [&] { return kubelet_.Prepare("claim", kUid); });
  FakeHandler next;
  auto second = FrontEnd::Start(Options(), &next);
  ASSERT_TRUE(second) << second.error().ToString();
  (*second)->SetOffer(TwoGpus());
  const auto devices = waits.get();
  ASSERT_TRUE(devices) << devices.error().ToString();
  EXPECT_EQ(devices->size(), 2U);
  EXPECT_EQ(next.last.uid, kUid);
  EXPECT_TRUE(kubelet_.Unprepare("claim", kUid));
  EXPECT_THAT(next.unprepared, ElementsAre(kUid));
}

// Two kubelets, as in the moment in which one restarts.
TEST_F(FrontEndTest, EachStreamHasTheHealthOfAllGpusAtOnce) {
  const auto first = kubelet_.WatchHealth();
  const auto second = kubelet_.WatchHealth();
  for (const testing::HealthWatch* const watch : {first.get(), second.get()}) {
    ASSERT_TRUE(watch->WaitLists(1, kLongMs));
    EXPECT_THAT(watch->Last(), UnorderedElementsAre(Pair("node0/gpu-0", Health{true, ""}),
                                                    Pair("node0/gpu-1", Health{true, ""})));
  }
  front_end_->SetOffer(Sick("XID 79: GPU has fallen off the bus"));
  for (const testing::HealthWatch* const watch : {first.get(), second.get()}) {
    ASSERT_TRUE(watch->WaitLists(2, kLongMs));
    EXPECT_THAT(
        watch->Last(),
        UnorderedElementsAre(
            Pair("node0/gpu-0", Health{true, ""}),
            Pair("node0/gpu-1",
                 Health{false, "GPU GPU-1 is unhealthy: XID 79: GPU has fallen off the bus"})));
  }
  front_end_->SetOffer(Sick("the GPU does not answer"));
  ASSERT_TRUE(first->WaitLists(3, kLongMs));
  EXPECT_THAT(first->Last()["node0/gpu-1"].message, HasSubstr("does not answer"));
  front_end_->SetOffer(TwoGpus());
  front_end_->SetOffer(TwoGpus());
  for (const testing::HealthWatch* const watch : {first.get(), second.get()}) {
    ASSERT_TRUE(watch->WaitLists(4, kLongMs));
    EXPECT_EQ(watch->Last()["node0/gpu-1"], (Health{true, ""}));
  }
  const auto third = kubelet_.WatchHealth();
  ASSERT_TRUE(third->WaitLists(1, kLongMs));
  EXPECT_EQ(first->lists(), 4U) << "what is not new is not sent";
}

// The kubelet takes what it has not heard of for 30 s for unknown.
TEST_F(FrontEndTest, HealthIsRepeated) {
  front_end_.reset();
  health_ms_ = 30;
  Start();
  EXPECT_TRUE(kubelet_.WatchHealth()->WaitLists(4, kLongMs));
}

// A stream can open before the plugin has looked at its GPUs.
TEST_F(FrontEndTest, AStreamWaitsForTheFirstOffer) {
  front_end_.reset();
  health_ms_ = 30;
  auto started = FrontEnd::Start(Options(), &handler_);
  ASSERT_TRUE(started) << started.error().ToString();
  const auto watch = kubelet_.WatchHealth();
  EXPECT_FALSE(watch->WaitLists(1, /*timeout_ms=*/300));
  (*started)->SetOffer(TwoGpus());
  EXPECT_TRUE(watch->WaitLists(1, kLongMs));
}

// Goal: a stream that nobody reads costs one list, and delays neither the others, nor calls, nor
// the end. Method: far more than HTTP/2's window is sent meanwhile; then it is read to the end.
TEST_F(FrontEndTest, AStreamThatNobodyReadsDoesNoHarm) {
  constexpr size_t kGpus = 64;
  constexpr size_t kChanges = 200;
  const auto deaf = kubelet_.WatchHealth(/*deaf=*/true);
  const auto deaf_until_the_end = kubelet_.WatchHealth(/*deaf=*/true);
  const auto other = kubelet_.WatchHealth();
  ASSERT_TRUE(other->WaitLists(1, kLongMs));
  Offer offer;
  for (size_t i = 0; i < kGpus; ++i) {
    offer.gpus.push_back({.uuid = Concat("GPU-", i), .healthy = false});
    offer.devices.push_back({.uuid = offer.gpus.back().uuid, .name = "Simulated GPU"});
  }
  for (size_t change = 0; change <= kChanges; ++change) {
    for (const binding::Gpu& gpu : offer.gpus) {
      offer.reasons[gpu.uuid] = Concat(std::string(900, 'x'), " change ", change, ".");
    }
    front_end_->SetOffer(offer);
  }
  const auto is_last = [&](const HealthList& list) {
    return list.size() == kGpus &&
           list.begin()->second.message.ends_with(Concat(" change ", kChanges, "."));
  };
  EXPECT_TRUE(other->WaitFor(is_last, kLongMs));
  EXPECT_TRUE(kubelet_.Unprepare("claim", kUid));
  deaf->Hear();
  EXPECT_TRUE(deaf->WaitFor(is_last, kLongMs));
  EXPECT_LT(deaf->lists(), kChanges);
  const int64_t started_ns = MonotonicNs();
  front_end_.reset();
  EXPECT_LT(MonotonicNs() - started_ns, 2'000'000'000) << "stop_ms";
  EXPECT_TRUE(deaf->WaitEnd(kLongMs));
  EXPECT_TRUE(other->WaitEnd(kLongMs));
}

TEST_F(FrontEndTest, TheEndRemovesTheSocketsAndLeavesTheSlices) {
  Register();
  ASSERT_TRUE(WaitUntil([&] { return front_end_->state().published; }));
  front_end_.reset();
  EXPECT_FALSE(std::filesystem::exists(folder_ / "registry/gpushm.io-reg.sock"));
  EXPECT_EQ(server_.Slices().size(), 1U);
}

}  // namespace
}  // namespace gpushm::plugin::dra
