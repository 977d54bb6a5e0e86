// The context functions that only need the current context.
#include "simulator/cuda/driver.h"

using gpushm::sim::Call;
using gpushm::sim::CallWithContext;
using gpushm::sim::Context;
using gpushm::sim::Driver;
using gpushm::sim::Engine;

CUresult CUDAAPI cuInit(unsigned int Flags) {
  if (Flags != 0) return CUDA_ERROR_INVALID_VALUE;
  try {
    const CUresult result = Driver::Get().Init();
    return result == CUDA_SUCCESS ? Driver::Get().Enter("cuInit") : result;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int* flags, int* active) {
  return Call("cuDevicePrimaryCtxGetState", [&](Driver& driver) {
    if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (driver.card(dev) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    const std::lock_guard lock(driver.mutex);
    *flags = 0;
    *active = driver.contexts[static_cast<size_t>(dev)]->engine != nullptr ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice* device) {
  return Call("cuCtxGetDevice", [&](Driver& driver) {
    Context* context = nullptr;
    std::shared_ptr<Engine> engine;
    const CUresult result = driver.Current(&context, &engine);
    if (result != CUDA_SUCCESS) return result;
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = context->device;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxSynchronize(void) {
  return CallWithContext("cuCtxSynchronize",
                         [&](Driver&, Context&, const std::shared_ptr<Engine>& engine) {
                           return engine->WaitForAll();
                         });
}

CUresult CUDAAPI cuMemGetInfo(size_t* free, size_t* total) {
  return CallWithContext("cuMemGetInfo",
                         [&](Driver& driver, Context& context, const std::shared_ptr<Engine>&) {
                           if (free == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
                           const gpushm::sim::Card& card = *driver.card(context.device);
                           const uint64_t used = driver.state().Probe(card).used_bytes;
                           *total = card.memory_bytes;
                           *free = used < card.memory_bytes ? card.memory_bytes - used : 0;
                           return CUDA_SUCCESS;
                         });
}
