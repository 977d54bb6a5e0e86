// Shared by the tests of this folder: a temporary folder, a Handler that records its calls, and
// scaled-down times.
//
// Threads: the Handler's functions from any.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "platform/base/testing.h"
#include "plugin/kubelet/registration.h"
#include "plugin/kubelet/testing/scripted_kubelet.h"

namespace gpushm::plugin::kubelet::testing {

inline constexpr char kMemory[] = "gpushm.io/memory";
inline constexpr char kAttach[] = "gpushm.io/attach";
inline constexpr char kExclusive[] = "gpushm.io/exclusive";
// Long enough for a busy machine under a sanitizer; only failing tests reach it.
inline constexpr int64_t kLongMs = 30'000;
inline Deadline Soon() { return Deadline::AfterMs(kLongMs); }

using gpushm::testing::TempFolder;

class RecordingHandler : public Handler {
 public:
  struct Call {
    std::string kind;  // "allocate", "prestart"
    binding::Resource resource;
    binding::DeviceIds ids;
  };

  Result<std::vector<std::string>> Allocate(binding::Resource resource,
                                            const binding::DeviceIds& ids) override {
    Note("allocate", resource, ids);
    if (on_allocate) return on_allocate(resource, ids);
    return std::vector{
        Concat("gpushm.io/",
               resource == binding::Resource::kMemory ? "memory=" : "attach=", *ids.begin())};
  }
  Result<void> PreStart(binding::Resource resource, const binding::DeviceIds& ids) override {
    Note("prestart", resource, ids);
    return on_pre_start ? on_pre_start(resource, ids) : Result<void>();
  }

  std::vector<Call> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  size_t Count(const std::string& kind) const {
    const std::lock_guard lock(mutex_);
    return static_cast<size_t>(std::count_if(calls_.begin(), calls_.end(),
                                             [&](const Call& call) { return call.kind == kind; }));
  }

  // Must be set before anything is served.
  std::function<Result<std::vector<std::string>>(binding::Resource, const binding::DeviceIds&)>
      on_allocate;
  std::function<Result<void>(binding::Resource, const binding::DeviceIds&)> on_pre_start;

 private:
  void Note(const std::string& kind, binding::Resource resource, const binding::DeviceIds& ids) {
    const std::lock_guard lock(mutex_);
    calls_.push_back({kind, resource, ids});
  }
  mutable std::mutex mutex_;
  std::vector<Call> calls_;
};

// "m0000", "m0001", ...
inline std::vector<Advertised> Devices(const std::string& prefix, size_t count,
                                       size_t unhealthy = 0) {
  std::vector<Advertised> devices;
  for (size_t i = 0; i < count; ++i) {
    const std::string number = std::to_string(i);
    devices.push_back(
        {.id = prefix + std::string(4 - number.size(), '0') + number, .healthy = i >= unhealthy});
  }
  return devices;
}

// One device of each resource that only sidecars request.
inline void SetSidecarDevices(Registration* plugin) {
  plugin->SetDevices(binding::Resource::kExclusive, Devices("x", 1));
  plugin->SetDevices(binding::Resource::kGpus, Devices("g", 1));
  plugin->SetDevices(binding::Resource::kNvlink, Devices("n", 1));
}

// A scripted kubelet and the plugin's part in one process, not started yet.
class KubeletTest : public ::testing::Test {
 protected:
  KubeletTest() {
    kubelet_options.folder = folder / "device-plugins";
    kubelet_options.pod_resources_socket = folder / "pod-resources.sock";
    kubelet_options.dial_ms = 5000;
    kubelet_options.retry_ms = 5;
    options.folder = kubelet_options.folder;
    options.times = {.poll_ms = 200,
                     .poll_blind_ms = 10,
                     .register_ms = 5000,
                     .open_ms = 300,
                     .end_ms = 1000,
                     .grace_ms = 20,
                     .backoff_first_ms = 5,
                     .backoff_max_ms = 50,
                     .stable_ms = 1000,
                     .stop_ms = 1000,
                     .drain_ms = 50};
  }

  void StartKubelet() {
    kubelet = std::make_unique<ScriptedKubelet>(kubelet_options);
    const Result<void> started = kubelet->Start();
    ASSERT_TRUE(started) << started.error().ToString();
  }
  // Starts with `units` and `tokens` devices; does not wait for the kubelet.
  void StartPlugin(size_t units = 8, size_t tokens = 4) {
    Result<std::unique_ptr<Registration>> started = Registration::Start(options, &handler);
    ASSERT_TRUE(started) << started.error().ToString();
    plugin = std::move(*started);
    plugin->SetDevices(binding::Resource::kMemory, Devices("m", units));
    plugin->SetDevices(binding::Resource::kAttach, Devices("a", tokens));
    SetSidecarDevices(plugin.get());
  }
  // Whether both sides agree that the resources are usable.
  [[nodiscard]] ::testing::AssertionResult Usable(size_t units = 8, size_t tokens = 4) {
    if (!plugin->WaitFor([](const State& state) { return state.usable(); }, Soon()))
      return ::testing::AssertionFailure() << Errors();
    if (!kubelet->WaitAllocatable(kMemory, units, Soon()) ||
        !kubelet->WaitAllocatable(kAttach, tokens, Soon()))
      return ::testing::AssertionFailure() << "allocatable " << kubelet->Allocatable(kMemory);
    return ::testing::AssertionSuccess();
  }
  // Waits for registrations after `before`, and until both sides agree again.
  [[nodiscard]] ::testing::AssertionResult UsableAgain(const State& before) {
    const bool again = plugin->WaitFor(
        [&](const State& state) {
          return std::ranges::all_of(binding::kResources, [&](binding::Resource resource) {
            return state.Of(resource).registrations > before.Of(resource).registrations;
          });
        },
        Soon());
    if (!again) return ::testing::AssertionFailure() << "not registered again";
    return Usable();
  }

  // The last error of each resource.
  std::string Errors() const {
    std::string text;
    for (const binding::Resource resource : binding::kResources) {
      text += Concat(binding::ResourceName(resource), ": ", plugin->state().Of(resource).last_error,
                     "\n");
    }
    return text;
  }

  TempFolder folder;
  ScriptedKubelet::Options kubelet_options;
  Registration::Options options;
  RecordingHandler handler;
  std::unique_ptr<ScriptedKubelet> kubelet;
  std::unique_ptr<Registration> plugin;  // Destroyed first.
};

// A sidecar with memory, and a container that attaches.
inline PodSpec SharingPod(const std::string& name, size_t units = 2) {
  return {.pod = {"default", name},
          .containers = {{.name = "gpushm", .role = Role::kSidecar, .limits = {{kMemory, units}}},
                         {.name = "app", .role = Role::kApp, .limits = {{kAttach, 1}}}}};
}

}  // namespace gpushm::plugin::kubelet::testing
