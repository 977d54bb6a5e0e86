// A worker's commands about kernels that use its signal (gpushm/device.cuh; GPUs only), on its
// streams by NUMBER:
//   kernel set NUMBER VALUE
//   kernel advance NUMBER TIMES              a graph, captured once and launched TIMES times
//   kernel store NUMBER VALUE TIMES          memory operation node; VALUE grows with each launch
//   kernel reach NUMBER VALUE TIMES          the same with waits
#pragma once

#include <cuda.h>

#include <sstream>
#include <string>
#include <vector>

#include "platform/driver/cuda_api.h"
#include "tests/integration/signal_commands.h"

namespace gpushm::integration {

// Next to the program; built if CUDA's compiler is installed (./run setup --nvcc).
inline constexpr char kKernelsFile[] = "device_kernels.ptx";

class KernelCommands {
 public:
  KernelCommands(SignalCommands& signals, const CudaApi& api) : signals_(signals), api_(api) {}
  Answer Do(std::istringstream& in);

 private:
  bool Load();
  CUresult Launch(const std::string& name, CUstream stream, std::vector<void*> arguments);
  // Captures the work of `capture` in a graph that is launched `times` times.
  template <typename Capture>
  CUresult Repeat(CUstream stream, int times, Capture capture);
  CUresult RepeatNode(CUstream stream, int times, CUstreamBatchMemOpParams operation);

  SignalCommands& signals_;
  const CudaApi& api_;
  std::string program_;  // PTX.
  CUmodule module_ = nullptr;
};

}  // namespace gpushm::integration
