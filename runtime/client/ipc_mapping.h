// Owner of one use of a cuIpc handle (transport cuipc).
//
// A handle names a whole allocation, and a process has one mapping of it: buffers in the same
// allocation share that mapping. The uses are counted here, over all clients of the process.
//
// Invariants
//   (1) Opening fails in a process whose PID number equals the exporter's, and poisons the context.
//       Callers compare the numbers first and never try.
//   (2) A mapping is closed in the context in which it was opened.
//
// Threads: any thread may call Open and the destructor.
#pragma once

#include <cuda.h>
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <utility>

#include "platform/base/status.h"
#include "platform/driver/cuda_api.h"

namespace gpushm::client {

// The number that the driver takes for this process's PID: the PID, unless libgpushm-cudaipc.so is
// loaded. The driver writes it into handles, and compares it.
pid_t CudaPid();

class IpcMapping {
 public:
  using Handle = std::array<uint8_t, 64>;

  // Needs a current context on the calling thread: kUnsupported without one.
  static Result<IpcMapping> Open(const CudaApi& api, const Handle& handle);

  // Of the allocation; the buffer begins at an offset.
  CUdeviceptr base() const { return base_; }

  IpcMapping(IpcMapping&& other) noexcept
      : api_(other.api_), context_(other.context_), base_(std::exchange(other.base_, 0)) {}
  IpcMapping& operator=(IpcMapping&&) = delete;
  IpcMapping(const IpcMapping&) = delete;
  IpcMapping& operator=(const IpcMapping&) = delete;
  ~IpcMapping();

 private:
  IpcMapping(const CudaApi& api, CUcontext context, CUdeviceptr base)
      : api_(&api), context_(context), base_(base) {}

  const CudaApi* api_;
  CUcontext context_;
  CUdeviceptr base_;
};

}  // namespace gpushm::client
