// Labels of nodes by which the scheduler sees what a sum over GPUs hides. The plugin states them,
// the injector refers to them (docs/design/placement.md).
#pragma once

#include <cstddef>
#include <string>

namespace gpushm {

// How many units of gpushm.io/memory a new pod of `gpus` GPUs can get on each of them.
inline std::string LargestFreeLabel(size_t gpus) {
  const std::string label = "gpushm.io/largest-free";
  return gpus == 1 ? label : label + "-" + std::to_string(gpus);
}

}  // namespace gpushm
