// The kubelet's podresources: which container holds which of the plugin's device IDs, and which
// pods exist.
//
// A List makes the kubelet forget the IDs of pods that have ended. Kubelets so far also forget
// those of an Allocate in progress (k/k PR #137534). So callers keep the two apart, and refuse an
// ID that two containers hold.
//
// Threads: any; calls run in parallel.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "plugin/binding/snapshot.h"
#include "plugin/kubelet/resource_names.h"

namespace gpushm::plugin::kubelet {

// Device IDs of other plugins, keyed by their resource, and devices of claims, keyed by their
// driver.
using OtherDevices = std::map<std::string, binding::DeviceIds>;

struct PodList {
  binding::Snapshot snapshot;
  std::set<binding::Pod> pods;  // All active ones on the node, also without devices.
  OtherDevices others;          // Held by containers.
};

// What the kubelet could give to pods, including devices in use.
struct NodeDevices {
  std::map<binding::Resource, binding::DeviceIds> ours;
  OtherDevices others;
};

class PodResources {
 public:
  struct Options {
    std::string socket = "/var/lib/kubelet/pod-resources/kubelet.sock";
    ResourceNames names = {};
    // The limit of the kubelet's own clients. 64 pods with 4,096 IDs take 100 KB, a large node
    // more.
    int max_receive_bytes = 16 << 20;
    // Between attempts, if the kubelet answers that it was called too often (100 times a second).
    int64_t retry_ms = 20;
  };

  explicit PodResources(Options options);
  PodResources(const PodResources&) = delete;
  PodResources& operator=(const PodResources&) = delete;
  ~PodResources();

  // Shortly after a kubelet's start the list can be empty.
  // kUnavailable: no process answers there. kTimeout: no answer within `deadline`. kExhausted: the
  // answer is too large, or the kubelet was called too often until `deadline`.
  Result<PodList> List(const Deadline& deadline);

  // For the plugin's own resources it shows what only the kubelet knows: a kubelet that confused
  // two registrations reads the list but has no devices; see Registration::Renew. Errors as for
  // List.
  Result<NodeDevices> Allocatable(const Deadline& deadline);

 private:
  struct Connection;
  std::shared_ptr<Connection> Connect();
  void Forget(const std::shared_ptr<Connection>& connection);
  // Retries until there is an answer; `call` is one attempt.
  template <typename Call>
  Result<void> Ask(const char* asked, const Deadline& deadline, Call call);

  const Options options_;
  std::mutex mutex_;
  std::shared_ptr<Connection> connection_;  // Guarded by mutex_.
};

}  // namespace gpushm::plugin::kubelet
