// The two functions that torch.cuda.memory.CUDAPluggableAllocator takes from this file by their
// names (gpushm.torch.pool). PyTorch calls them under its own locks, from any thread, without the
// GIL.
#include <sys/types.h>

#include <cstdio>

#include "driver.h"

#define GPUSHM_EXPORTED extern "C" __attribute__((visibility("default")))

// Null if there is no memory. Then PyTorch gives back what it caches, tries again, and raises
// OutOfMemoryError.
GPUSHM_EXPORTED void* gpushm_torch_allocate(ssize_t bytes, int device, void* /*stream*/) {
  using namespace gpushm::python;
  const BesideCaptures beside;
  try {
    return reinterpret_cast<void*>(CreateShareable(device, static_cast<size_t>(bytes)));
  } catch (const DriverError&) {
    return nullptr;
  }
}

GPUSHM_EXPORTED void gpushm_torch_free(void* address, ssize_t bytes, int device, void* /*stream*/) {
  using namespace gpushm::python;
  const BesideCaptures beside;
  try {
    FreeShareable(device, reinterpret_cast<uint64_t>(address), static_cast<size_t>(bytes));
  } catch (const DriverError& error) {
    // PyTorch asks for no result. The driver may be gone already at the end of the process.
    std::fprintf(stderr, "gpushm: could not free GPU memory of gpushm.torch.pool: %s\n",
                 error.what());
  }
}
