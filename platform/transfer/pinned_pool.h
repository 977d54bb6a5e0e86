// Page-locked host memory for copies of this process. The driver frees such memory only when every
// stream of the process has done its work, a wait for a signal included
// (docs/design/conformance.md): so while a stream waits, what a copy is done with stays here, for
// the next one.
//
// Threads: any. Take and Give need the context that the copy uses, current.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "platform/base/status.h"
#include "platform/driver/cuda_api.h"
#include "platform/driver/device.h"

namespace gpushm {

class PinnedPool {
 public:
  // Of this process.
  static PinnedPool& Instance();

  // `size_bytes` or more.
  Result<PinnedBuffer> Take(const CudaApi& api, size_t size_bytes);
  // No copy uses it any more. Unless a stream waits, it is freed, with all that is here.
  void Give(const CudaApi& api, PinnedBuffer buffer);
  // Frees what is here, unless a stream waits; takes as long as the process's work on the GPU.
  void Trim();
  size_t size();

 private:
  struct Kept {
    const CudaApi* api;
    CUcontext context;
    // The driver's number for this piece of memory, which it never gives again: a context that ends
    // takes its memory along, and the address may stand for somebody else's by now.
    unsigned long long id;
    PinnedBuffer buffer;

    bool IsThere() const;
  };

  std::mutex mutex_;
  std::vector<Kept> kept_;  // Under mutex_.
};

// Taken from the pool, and given back.
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
