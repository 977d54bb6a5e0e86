// The kubelet's podresources: which container holds which of our device IDs, and which pods there
// are.
//
// A List makes the kubelet forget IDs of pods that are gone, and with them, in kubelets so far,
// those of an Allocate that is under way (k/k PR #137534): callers keep the two apart, and refuse
// an ID that two containers hold.
//
// Threads: any; calls run beside each other.
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

// Device IDs of other plugins, by the resource that they are of; devices of claims, by their
// driver.
using OtherDevices = std::map<std::string, DeviceIds>;

struct PodList {
  Snapshot snapshot;
  std::set<Pod> pods;   // All that are active on the node, also those without devices.
  OtherDevices others;  // That containers hold.
};

// What the kubelet would give to pods, taken devices too.
struct NodeDevices {
  std::map<Resource, DeviceIds> ours;
  OtherDevices others;
};

class PodResources {
 public:
  struct Options {
    std::string socket = "/var/lib/kubelet/pod-resources/kubelet.sock";
    ResourceNames names = {};
    // The kubelet's own clients use it: 64 pods with 4,096 IDs are 100 KB, a large node has more.
    int max_receive_bytes = 16 << 20;
    // Between attempts, when the kubelet says that it was asked too often (100 a second).
    int64_t retry_ms = 20;
  };

  explicit PodResources(Options options);
  PodResources(const PodResources&) = delete;
  PodResources& operator=(const PodResources&) = delete;
  ~PodResources();

  // Just after a kubelet's start the list can be empty.
  // kUnavailable: nobody answers there. kTimeout: not within `deadline`. kExhausted: the answer is
  // too large, or the kubelet was asked too often until `deadline`.
  Result<PodList> List(const Deadline& deadline);

  // Of ours it is what only the kubelet knows: one that has confused two registrations reads our
  // list and has no devices; see Registration::Renew. Errors as List.
  Result<NodeDevices> Allocatable(const Deadline& deadline);

 private:
  struct Connection;
  std::shared_ptr<Connection> Connect();
  void Forget(const std::shared_ptr<Connection>& connection);
  // Asks until it is answered; `call` is one attempt.
  template <typename Call>
  Result<void> Ask(const char* asked, const Deadline& deadline, Call call);

  const Options options_;
  std::mutex mutex_;
  std::shared_ptr<Connection> connection_;  // Guarded by mutex_.
};

}  // namespace gpushm::plugin::kubelet
