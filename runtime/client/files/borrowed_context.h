// A GPU's primary context, borrowed for one call of the library.
//
// Threads: an object belongs to the thread that made it.
#pragma once

#include <cuda.h>

#include <utility>

#include "platform/base/status.h"
#include "platform/driver/cuda_api.h"
#include "platform/driver/device.h"

namespace gpushm::client {

// Makes the device's primary context current on this thread while the object lives; the destructor
// restores the thread's own context. If the process has no context yet, this costs as much as
// PrimaryContext does.
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
