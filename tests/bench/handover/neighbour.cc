// A process that keeps the GPU busy with kernels of 200 us, like a third tenant of the card.
#include "tests/bench/handover/endpoint.h"
#include "tests/bench/spin_kernel.h"

namespace gpushm::bench::handover {
namespace {

constexpr uint64_t kKernelNs = 200'000;
constexpr int kKernelsAtOnce = 50;
constexpr unsigned kThreads = 64;

}  // namespace

void KeepBusy(Channel& parent, const std::vector<std::string>&) {
  FindDriver();
  NeedContext();
  const Machine& machine = ThisMachine();
  if (machine.simulated) throw Failure(Code::kUnsupported, "the simulated driver runs no kernels");
  const CudaApi& api = *machine.api;
  CUmodule module = nullptr;
  CUfunction spin = nullptr;
  int processors = 0;
  Must(api.Check(api.cuModuleLoadData(&module, kSpinModule), "cuModuleLoadData"));
  Must(api.Check(api.cuModuleGetFunction(&spin, module, "spin"), "cuModuleGetFunction"));
  Must(api.Check(api.cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                          machine.device.device),
                 "cuDeviceGetAttribute"));
  uint64_t duration_ns = kKernelNs;
  void* arguments[] = {&duration_ns};
  for (bool first = true;; first = false) {
    for (int i = 0; i < kKernelsAtOnce; ++i) {
      Must(api.Check(api.cuLaunchKernel(spin, static_cast<unsigned>(processors), 1, 1, kThreads, 1,
                                        1, 0, nullptr, arguments, nullptr),
                     "cuLaunchKernel"));
    }
    Must(api.Check(api.cuCtxSynchronize(), "cuCtxSynchronize"));
    if (first) parent.Say("busy");
  }
}

}  // namespace gpushm::bench::handover
