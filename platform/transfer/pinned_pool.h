// Page-locked host memory for copies of this process. The driver frees such memory only when every
// stream of the process has done its work, including a wait for a signal
// (docs/design/conformance.md). So while a stream waits, the memory of a finished copy stays here
// for the next copy.
//
// Threads: any. Take and Give need the copy's context to be current.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "platform/base/status.h"
#include "platform/driver/cuda_api.h"
#include "platform/driver/device.h"
#include "platform/transfer/file_pages.h"

namespace gpushm {

class PinnedPool {
 public:
  // The instance of this process.
  static PinnedPool& Instance();

  // A buffer of at least `size_bytes`.
  Result<PinnedBuffer> Take(const CudaApi& api, size_t size_bytes);
  // Takes back a buffer that no copy uses any more. Unless a stream waits, frees it and everything
  // else here.
  void Give(const CudaApi& api, PinnedBuffer buffer);
  // The same for a file's pages, which nobody takes again.
  void Give(FilePages pages);
  // Frees everything here, unless a stream waits. Takes as long as the process's work on the GPU.
  void Trim();
  size_t size();

 private:
  struct Kept {
    const CudaApi* api;
    CUcontext context;
    // The driver's number for this piece of memory, which it never reuses. A context that ends
    // takes its memory with it, so the address may belong to another owner now.
    unsigned long long id;
    PinnedBuffer buffer;

    bool IsThere() const;
  };

  std::mutex mutex_;
  // Guarded by mutex_:
  std::vector<Kept> kept_;
  std::vector<FilePages> kept_pages_;
};

// A buffer taken from the pool; the destructor gives it back.
class PooledBuffer {
 public:
  static Result<PooledBuffer> Take(const CudaApi& api, size_t size_bytes) {
    Result<PinnedBuffer> taken = PinnedPool::Instance().Take(api, size_bytes);
    if (!taken) return std::unexpected(taken.error());
    return PooledBuffer(api, std::move(*taken));
  }
  std::byte* data() const { return buffer_.data(); }

  PooledBuffer(PooledBuffer&&) = default;
  PooledBuffer& operator=(PooledBuffer&&) = delete;
  ~PooledBuffer() {
    if (buffer_.data() != nullptr) PinnedPool::Instance().Give(*api_, std::move(buffer_));
  }

 private:
  PooledBuffer(const CudaApi& api, PinnedBuffer buffer) : api_(&api), buffer_(std::move(buffer)) {}
  const CudaApi* api_;
  PinnedBuffer buffer_;
};

}  // namespace gpushm
