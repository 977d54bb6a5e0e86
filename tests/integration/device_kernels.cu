// Kernels of device_header_test.cc, under names that cuModuleGetFunction finds.
#include "gpushm/device.cuh"

// Only to see that CUDA's compiler accepts the C++ headers.
#include "gpushm/sync.hpp"
#include "gpushm/tensors.hpp"

using namespace gpushm::device;

extern "C" __global__ void set_signal(uint64_t address, uint64_t value) {
  __threadfence_system();
  SignalWriter(address).Set(value);
}

extern "C" __global__ void wait_signal(uint64_t address, uint64_t value, uint64_t timeout_ns,
                                       uint32_t* outcome) {
  *outcome = static_cast<uint32_t>(SignalReader(address).Wait(value, timeout_ns));
}

// Graph kernels; their names are mangled.
template __global__ void gpushm::device::AdvanceSignal<0>(uint64_t);
template __global__ void gpushm::device::AwaitNext<0>(uint64_t, uint64_t*, uint64_t, uint32_t*);
