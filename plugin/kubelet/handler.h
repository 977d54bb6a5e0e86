// What the kubelet requests of the plugin, without gRPC. Allocator implements it.
#pragma once

#include <string>
#include <vector>

#include "platform/base/status.h"
#include "plugin/binding/snapshot.h"

namespace gpushm::plugin::kubelet {

// Calls come from several threads at once.
class Handler {
 public:
  virtual ~Handler() = default;

  // A container is admitted with these IDs. The kubelet waits without a deadline and admits no
  // other pod meanwhile, so this must take milliseconds only. If it returns an error, the pod fails
  // permanently. The answer, CDI names such as "gpushm.io/memory=m0000", is kept by the kubelet
  // over restarts and reboots, and never requested again.
  virtual Result<std::vector<std::string>> Allocate(binding::Resource resource,
                                                    const binding::DeviceIds& ids) = 0;

  // Called before each start of that container; must return within 30 s. An error keeps the
  // container waiting, with its text in the pod's events, and the kubelet tries again.
  virtual Result<void> PreStart(binding::Resource resource, const binding::DeviceIds& ids) = 0;
};

}  // namespace gpushm::plugin::kubelet
