// Another plugin takes over; its sockets are registered before the first plugin's streams end.
// Since 1.37 no pod is rejected meanwhile. Before, the kubelet rejects pods that come between the
// end of the old stream and the second registration. The kubelet is scripted, of both kinds.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <thread>

#include "platform/daemon/unix_socket.h"
#include "plugin/kubelet/testing/fixture.h"

namespace gpushm::plugin::kubelet {
namespace {

using namespace testing;  // NOLINT: the folder's test support
using ::testing::HasSubstr;

class HandingOver : public KubeletTest, public ::testing::WithParamInterface<bool> {
 protected:
  void StartBoth() {
    StartKubelet();
    StartPlugin();
    ASSERT_TRUE(Usable());
  }
  // Such a plugin decides nothing any more.
  void RefuseAllocations() {
    handler.on_allocate = [](binding::Resource,
                             const binding::DeviceIds&) -> Result<std::vector<std::string>> {
      return Fail(Code::kUnavailable, "this plugin is shutting down");
    };
  }
  Result<std::unique_ptr<Registration>> StartBeside(Handler* second_handler) {
    Registration::Options beside = options;
    beside.beside = true;
    auto second = Registration::Start(beside, second_handler);
    if (!second) return second;
    (*second)->SetDevices(binding::Resource::kMemory, Devices("m", 8));
    (*second)->SetDevices(binding::Resource::kAttach, Devices("a", 4));
    SetSidecarDevices(second->get());
    return second;
  }
  // Adds pods one after the other until it is stopped, and counts those that failed.
  struct Pods {
    explicit Pods(ScriptedKubelet* kubelet)
        : thread([this, kubelet] {
            for (int i = 0; !stop; ++i) {
              const std::string uid = kubelet->AddPod(SharingPod(Concat("pod-", i)));
              const PodStatus status = kubelet->StatusOf(uid);
              if (status.failed) {
                ++failed;
                const std::lock_guard lock(mutex);
                message = status.message;
              } else if (!kubelet->WaitRunning(uid, Soon())) {
                ++stuck;
              }
              kubelet->DeletePod(uid);
              ++done;
            }
          }) {}
    ~Pods() { Stop(); }
    void Stop() {
      stop = true;
      if (thread.joinable()) thread.join();
    }
    // Waits for `more` further pods.
    bool Wait(int more) const {
      const int wanted = done + more;
      const Deadline deadline = Soon();
      while (done < wanted && !deadline.Passed()) std::this_thread::yield();
      return done >= wanted;
    }
    std::atomic<bool> stop = false;
    std::atomic<int> done = 0;
    std::atomic<int> failed = 0;
    std::atomic<int> stuck = 0;
    std::mutex mutex;
    std::string message;
    std::thread thread;
  };
};
INSTANTIATE_TEST_SUITE_P(Kubelets, HandingOver, ::testing::Bool());

TEST_P(HandingOver, LeavesNoPodBehind) {
  kubelet_options.known_by_resource_alone = GetParam();
  std::atomic<bool> closed = false;
  handler.on_allocate = [&](binding::Resource,
                            const binding::DeviceIds& ids) -> Result<std::vector<std::string>> {
    if (closed) return Fail(Code::kUnavailable, "this plugin is shutting down");
    return std::vector{*ids.begin()};
  };
  handler.on_pre_start = [&](binding::Resource, const binding::DeviceIds&) -> Result<void> {
    if (closed) return Fail(Code::kUnavailable, "this plugin is shutting down");
    return {};
  };
  RecordingHandler second_handler;
  StartBoth();
  Pods pods(kubelet.get());
  ASSERT_TRUE(pods.Wait(3));
  plugin->HandOver();
  closed = true;
  auto second = StartBeside(&second_handler);
  ASSERT_TRUE(second) << second.error().ToString();
  ASSERT_TRUE((*second)->WaitFor([](const State& state) { return state.usable(); }, Soon()));
  ASSERT_TRUE(pods.Wait(3));
  EXPECT_EQ(pods.failed, 0) << pods.message;
  plugin->Stop();
  plugin = std::move(*second);
  if (GetParam()) {
    // Its streams end together with the first plugin's.
    EXPECT_TRUE(plugin->WaitFor(
        [](const State& state) {
          return std::ranges::all_of(state.resources,
                                     [](const ResourceState& one) { return one.failures > 0; });
        },
        Soon()));
  }
  ASSERT_TRUE(Usable());
  ASSERT_TRUE(pods.Wait(1));  // One that came before.
  const int failed = pods.failed;
  ASSERT_TRUE(pods.Wait(3));
  pods.Stop();
  EXPECT_EQ(pods.failed, failed) << pods.message;
  EXPECT_EQ(pods.stuck, 0);
  if (!GetParam()) {
    EXPECT_EQ(failed, 0) << pods.message;
  }
  EXPECT_GT(second_handler.Count("allocate"), 0U);
}

// Requests to the first plugin, before the second one listens, wait for the second one.
TEST_P(HandingOver, WaitsForTheOneThatTakesOver) {
  kubelet_options.known_by_resource_alone = GetParam();
  RefuseAllocations();
  RecordingHandler second_handler;
  StartBoth();
  plugin->HandOver();
  std::string uid;
  std::jthread admits([&] { uid = kubelet->AddPod(SharingPod("pod")); });
  for (const Deadline asked = Soon(); handler.Count("allocate") == 0;) ASSERT_FALSE(asked.Passed());
  auto second = StartBeside(&second_handler);
  ASSERT_TRUE(second) << second.error().ToString();
  admits.join();
  EXPECT_FALSE(kubelet->StatusOf(uid).failed) << kubelet->StatusOf(uid).message;
  EXPECT_EQ(second_handler.Count("allocate"), 2U);
  second->reset();
}

// A call that the first plugin forwards is still in progress when the kubelet knows the second one.
TEST_P(HandingOver, EndsNoCallThatIsUnderWay) {
  kubelet_options.known_by_resource_alone = GetParam();
  RefuseAllocations();
  std::promise<void> go_on;
  RecordingHandler second_handler;
  second_handler.on_allocate =
      [until = go_on.get_future().share()](
          binding::Resource, const binding::DeviceIds& ids) -> Result<std::vector<std::string>> {
    until.wait();
    return std::vector{*ids.begin()};
  };
  StartBoth();
  plugin->HandOver();
  std::string uid;
  std::thread admits([&] { uid = kubelet->AddPod(SharingPod("pod")); });
  auto second = StartBeside(&second_handler);
  if (second) {
    EXPECT_TRUE((*second)->WaitFor([](const State& state) { return state.usable(); }, Soon()));
    const Deadline asked = Soon();
    while (second_handler.Count("allocate") == 0 && !asked.Passed()) std::this_thread::yield();
    plugin->Drain(Deadline::AfterMs(200));  // In vain: the call continues.
  }
  go_on.set_value();
  plugin->Drain(Soon());
  plugin->Stop();
  admits.join();
  ASSERT_TRUE(second) << second.error().ToString();
  EXPECT_FALSE(kubelet->StatusOf(uid).failed) << kubelet->StatusOf(uid).message;
  second->reset();
}

// The plugin that should take over hangs: its sockets accept connections, but it does not answer.
TEST_P(HandingOver, SaysSoWhereNobodyTakesOver) {
  kubelet_options.known_by_resource_alone = GetParam();
  RefuseAllocations();
  StartBoth();
  const auto hangs = ListeningSocket::Bind(folder / "device-plugins/gpushm-memory-2.sock");
  ASSERT_TRUE(hangs);
  plugin->HandOver();
  const std::string uid = kubelet->AddPod(SharingPod("pod"));
  EXPECT_TRUE(kubelet->StatusOf(uid).failed);
  EXPECT_THAT(kubelet->StatusOf(uid).message, HasSubstr("the plugin that is taking over"));
}

}  // namespace
}  // namespace gpushm::plugin::kubelet
