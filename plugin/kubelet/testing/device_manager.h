// What a kubelet knows about devices and their holders: the bookkeeping of its device manager, as
// in kubelets 1.28 to 1.37, including the faults that matter to a plugin. No I/O.
//
//   - IDs are handed out in random order (Go's maps).
//   - An ID is reserved before Allocate is called. The reservation is lost if the bookkeeping is
//   rebuilt
//     meanwhile (k/k PR #137534), so one ID can be given twice.
//   - IDs of pods that have ended become free only when somebody reads the bookkeeping (Update).
//
// Threads: any. As in the kubelet, no lock is held during calls to the plugin.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "platform/base/status.h"

namespace gpushm::plugin::kubelet::testing {

using Ids = std::set<std::string>;

// A plugin's answer to Allocate; kept for the life of the pod.
struct Answer {
  std::vector<std::string> cdi_names;
};

// One container of one incarnation of a pod.
struct Holder {
  std::string uid;
  std::string container;
  auto operator<=>(const Holder&) const = default;
};

class DeviceManager {
 public:
  explicit DeviceManager(uint32_t seed) : random_(seed) {}

  // A message of ListAndWatch.
  void SetDevices(const std::string& resource, const std::map<std::string, bool>& healthy_by_id);
  // Its plugin has ended.
  void MarkUnhealthy(const std::string& resource);
  // A new process reads the checkpoint: holders stay, capacity is zero.
  void Restart();

  bool IsKnown(const std::string& resource) const;
  size_t Capacity(const std::string& resource) const;
  size_t Allocatable(const std::string& resource) const;
  std::map<std::string, Ids> Healthy() const;  // Keyed by resource.

  // Reserves `count` IDs for a container. Nothing: no Allocate is needed, because the container has
  // them or runs. The texts of failures are the kubelet's.
  Result<std::optional<std::vector<std::string>>> Reserve(const Holder& holder,
                                                          const std::string& resource, size_t count,
                                                          bool already_running);
  void Insert(const Holder& holder, const std::string& resource,
              const std::vector<std::string>& ids, Answer answer);
  // After an Allocate that failed.
  void Rebuild();
  // Forgets pods that are not in `active`.
  void Update(const std::set<std::string>& active);

  // What a container has of a resource; nothing if it never got any.
  std::optional<Ids> IdsOf(const Holder& holder, const std::string& resource) const;
  std::map<std::string, Ids> AllOf(const Holder& holder) const;
  std::vector<Answer> AnswersOf(const Holder& holder) const;
  // Whether the plugin reports any of them unhealthy, or has died.
  bool IsAnyUnhealthy(const std::string& resource, const Ids& ids) const;

  // IDs in an arbitrary order.
  std::vector<std::string> Shuffle(const Ids& ids);

 private:
  struct Devices {
    Ids healthy;
    Ids unhealthy;
  };
  struct Held {
    Ids ids;
    Answer answer;
  };
  void RebuildLocked();
  std::vector<std::string> ShuffleLocked(const Ids& ids);

  mutable std::mutex mutex_;
  std::mt19937 random_;
  std::map<std::string, Devices> devices_;              // Keyed by resource.
  std::map<std::string, Ids> allocated_;                // Keyed by resource; includes reservations.
  std::map<Holder, std::map<std::string, Held>> held_;  // Keyed by resource.
};

}  // namespace gpushm::plugin::kubelet::testing
