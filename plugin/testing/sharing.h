// A pod that shares memory, on a TestNode with the scripted kubelet.
#pragma once

#include <string>
#include <vector>

#include "plugin/cdi/spec_text.h"
#include "plugin/kubelet/testing/scripted_kubelet.h"
#include "plugin/testing/plugin_process.h"

namespace gpushm::plugin::testing {

inline constexpr char kMemory[] = "gpushm.io/memory";
inline constexpr char kAttach[] = "gpushm.io/attach";
inline constexpr int64_t kLongMs = 30'000;
inline Deadline Soon() { return Deadline::AfterMs(kLongMs); }

// Two GPUs of 16 GiB, of which 1 GiB each is reserved; 64 tokens each.
inline constexpr size_t kUnits = 30;
inline constexpr size_t kTokens = 128;

// The kubelet of that node, which retries immediately and has no rate limit.
inline kubelet::testing::ScriptedKubelet::Options KubeletOf(const TestNode& node,
                                                            int64_t retry_ms = 20) {
  kubelet::testing::ScriptedKubelet::Options options;
  options.folder = node / "plugins";
  options.pod_resources_socket = node / "pods/kubelet.sock";
  options.retry_ms = retry_ms;
  options.list_qps = 1e6;
  options.list_burst = 1e6;
  return options;
}

// A sidecar with that many units, and the containers `users` with one token each.
inline kubelet::testing::PodSpec SharingPod(const std::string& name, size_t units,
                                            const std::vector<std::string>& users = {"one",
                                                                                     "two"}) {
  using kubelet::testing::Role;
  kubelet::testing::PodSpec pod{.pod = {"default", name},
                                .containers = {{"gpushm", Role::kSidecar, {{kMemory, units}}}}};
  for (const std::string& user : users) {
    pod.containers.push_back({user, Role::kApp, {{kAttach, 1}}});
  }
  return pod;
}

// The GPU of each container of a pod, by the spec whose name Allocate answered.
inline std::vector<std::string> GpusOf(const TestNode& node,
                                       const kubelet::testing::ScriptedKubelet& kubelet,
                                       const std::string& uid) {
  std::vector<std::string> gpus;
  const auto status = kubelet.StatusOf(uid);
  for (const auto& [name, container] : status.containers) {
    for (const auto& answer : container.answers) {
      for (const std::string& cdi : answer.cdi_names) {
        if (cdi != cdi::kSharedCdiName) gpus.push_back(node.GpuOf(cdi));
      }
    }
  }
  return gpus;
}

}  // namespace gpushm::plugin::testing
