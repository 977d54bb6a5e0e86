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

// The graph's kernel; its name is mangled.
template __global__ void gpushm::device::AdvanceSignal<0>(uint64_t);
