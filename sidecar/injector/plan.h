// From a pod's annotations to what it must have: who attaches, how many units of GPU memory, which
// volumes the sidecar reads. The rules of docs/design/injector.md, and every reason why a pod is
// denied.
//
// Threads: pure functions; any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "contract/annotations/annotations.h"
#include "sidecar/injector/pod.h"
#include "sidecar/injector/settings.h"

namespace gpushm::injector {

// What an earlier call did, as it wrote it into gpushm.io/status. Containers that other webhooks
// add later are not in it and get no GPU, also where annotations changed, unless these name them.
struct Done {
  std::string version;                       // Of the injector.
  std::string image;                         // That it gave the sidecar.
  std::string annotations;                   // Digest of those that it read.
  std::vector<std::string> applications;     // That the pod had when it was first sent.
  std::vector<std::string> containers;       // That attach.
  std::vector<std::string> init_containers;  // That load through the broker.

  // Absent: nothing was done, or somebody wrote something else there.
  static std::optional<Done> Of(const PodView& pod);
};

struct Plan {
  config::PodSpec spec;
  Done done;
  std::vector<std::string> volumes;  // That a `file:` names; sorted.
  uint64_t memory_bytes = 0;         // Of a GPU, all together.
  uint64_t units = 0;
  bool loads = false;
  bool stale = true;  // What an earlier call did, if any, was for other annotations.
  bool redo = true;   // Or by an injector before an upgrade: a copy of a pod that ran then.

  // The value of gpushm.io/status.
  std::string Status() const;
};

// gpushm.io/inject: "false". Whatever else its annotations say, it is left alone.
bool OptsOut(const PodView& pod);

// No plan: the pod opted out, or nothing in its annotations asks for anything.
config::OrErrors<std::optional<Plan>> MakePlan(const PodView& pod, const Settings& settings);

}  // namespace gpushm::injector
