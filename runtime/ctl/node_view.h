// Renders the plugin's status document (contract/status/status.h) on a terminal. Pure.
#pragma once

#include <string>

#include "contract/status/status.h"
#include "runtime/ctl/views.h"

namespace gpushm::ctl {

struct NodeStyle {
  Style style;
  bool unicode = false;
  int columns = 80;
  int rows = 0;  // The largest number of lines; 0: no limit.
};
// "namespace/pod"; without Kubernetes, the allocation.
std::string PodOf(const status::Pool& pool);
// The same; of a pod with several GPUs also which of them it is.
std::string PodOnGpu(const status::Pool& pool);

// A bar for each GPU, then a line for each holder of each buffer.
std::string NodeText(const status::Node& node, const NodeStyle& style);

// The pods that hold memory of a GPU, and the containers that have processes there. `node` has the
// pods' other GPUs.
std::string PodsText(const status::Node& node, const status::Gpu& gpu, bool color);

}  // namespace gpushm::ctl
