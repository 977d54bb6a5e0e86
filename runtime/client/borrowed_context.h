// A GPU's primary context, borrowed for a call of the library.
//
// Threads: an object belongs to the thread that made it.
#pragma once

#include <cuda.h>

#include <utility>

#include "platform/base/status.h"
#include "platform/driver/cuda_api.h"
#include "platform/driver/device.h"

namespace gpushm::client {

// The device's primary context, current on this thread for the time; the thread's own comes back.
// Costs what PrimaryContext does where the process has none.
class BorrowedContext {
 public:
  static Result<BorrowedContext> Push(const CudaApi& api, CUdevice device) {
    Result<PrimaryContext> context = PrimaryContext::Retain(api, device);
    if (!context) return std::unexpected(context.error());
    if (auto done = api.Check(api.cuCtxPushCurrent(context->context()), "cuCtxPushCurrent");
        !done) {
      return std::unexpected(done.error());
    }
    return BorrowedContext(api, std::move(*context));
  }
  BorrowedContext(BorrowedContext&& other) noexcept
      : api_(std::exchange(other.api_, nullptr)), context_(std::move(other.context_)) {}
  BorrowedContext& operator=(BorrowedContext&&) = delete;
  ~BorrowedContext() {
    CUcontext popped = nullptr;
    if (api_ != nullptr) api_->cuCtxPopCurrent(&popped);
  }

 private:
  BorrowedContext(const CudaApi& api, PrimaryContext context)
      : api_(&api), context_(std::move(context)) {}
  const CudaApi* api_;
  PrimaryContext context_;
};

}  // namespace gpushm::client
