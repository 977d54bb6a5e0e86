// What the kubelet asks of the plugin, free of gRPC: implemented by what decides (Allocator).
#pragma once

#include <string>
#include <vector>

#include "platform/base/status.h"
#include "plugin/binding/snapshot.h"
#include "plugin/cdi/edits.h"

namespace gpushm::plugin::kubelet {

// The answer to Allocate. The kubelet keeps it over restarts and reboots and never asks again.
struct Grant {
  std::vector<std::string> cdi_names;  // "gpushm.io/memory=m0000"
  Edits edits;                         // Strategy "devices"; empty with CDI.
};

// Calls come from several threads at once.
class Handler {
 public:
  virtual ~Handler() = default;

  // A container is admitted with these IDs. The kubelet waits without a deadline and starts no
  // other pod meanwhile, so this takes milliseconds; a Status fails the pod for good.
  virtual Result<Grant> Allocate(Resource resource, const DeviceIds& ids) = 0;

  // Before each start of that container, within 30 s. A Status keeps the container waiting, with
  // its text in the pod's events; the kubelet asks again.
  virtual Result<void> PreStart(Resource resource, const DeviceIds& ids) = 0;

  // Which of `available` the next Allocate of `count` IDs should get, those of `must_include` among
  // them. A hint. Only asked where Options::prefers is set.
  virtual DeviceIds Prefer(Resource resource, const DeviceIds& available,
                           const DeviceIds& must_include, size_t count) = 0;
};

}  // namespace gpushm::plugin::kubelet
