#include "platform/transfer/pinned_pool.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "platform/base/per_process.h"
#include "platform/driver/stream_waits.h"
#include "platform/transfer/transfer_engine.h"

namespace gpushm {
namespace {

bool AnyStreamWaits() { return StreamWaits::Instance().AnyPending(); }

Result<CUcontext> Current(const CudaApi& api) {
  CUcontext context = nullptr;
  if (auto done = api.Check(api.cuCtxGetCurrent(&context), "cuCtxGetCurrent"); !done) {
    return std::unexpected(done.error());
  }
  return context;
}

CUresult NumberOf(const CudaApi& api, const PinnedBuffer& buffer, unsigned long long* id) {
  const auto address = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(buffer.data()));
  return api.cuPointerGetAttribute(id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address);
}

}  // namespace

PinnedPool& PinnedPool::Instance() {
  static constinit PerProcess<PinnedPool> pool;
  return pool.Get();
}

bool PinnedPool::Kept::IsThere() const {
  unsigned long long now = 0;
  return NumberOf(*api, buffer, &now) == CUDA_SUCCESS && now == id;
}

Result<PinnedBuffer> PinnedPool::Take(const CudaApi& api, size_t size_bytes) {
  const Result<CUcontext> context = Current(api);
  if (!context) return std::unexpected(context.error());
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(kept_, [&](Kept& kept) {
      if (kept.context != *context || kept.IsThere()) return false;
      kept.buffer.Forget();
      return true;
    });
    const auto fits = std::ranges::find_if(kept_, [&](const Kept& kept) {
      return kept.context == *context && kept.buffer.size_bytes() >= size_bytes;
    });
    if (fits != kept_.end()) {
      PinnedBuffer buffer = std::move(fits->buffer);
      kept_.erase(fits);
      return buffer;
    }
  }
  // A buffer that will stay is made large enough for the next copy, too, so that a growing series
  // of copies does not fill the pool.
  const bool will_stay = AnyStreamWaits();
  return PinnedBuffer::Allocate(api,
                                will_stay ? std::max(size_bytes, kTransferChunkBytes) : size_bytes);
}

void PinnedPool::Give(const CudaApi& api, PinnedBuffer buffer) {
  if (!AnyStreamWaits()) return Trim();  // This also frees the buffer.
  unsigned long long id = 0;
  const Result<CUcontext> context = Current(api);
  // Without the number, nobody could tell later whose memory is at the address.
  if (!context || NumberOf(api, buffer, &id) != CUDA_SUCCESS) return;
  const std::lock_guard lock(mutex_);
  kept_.push_back({&api, *context, id, std::move(buffer)});
}

void PinnedPool::Give(FilePages pages) {
  if (!AnyStreamWaits()) return Trim();  // This function's end also unregisters these.
  const std::lock_guard lock(mutex_);
  kept_pages_.push_back(std::move(pages));
}

size_t PinnedPool::size() {
  const std::lock_guard lock(mutex_);
  return kept_.size() + kept_pages_.size();
}

void PinnedPool::Trim() {
  if (AnyStreamWaits()) return;
  std::vector<Kept> freed;
  std::vector<FilePages> freed_pages;  // Its destructor unregisters them.
  {
    const std::lock_guard lock(mutex_);
    freed.swap(kept_);
    freed_pages.swap(kept_pages_);
  }
  // Checked and freed one by one: each may take as long as the process's work on the GPU.
  for (Kept& kept : freed) {
    if (!kept.IsThere()) kept.buffer.Forget();
    const PinnedBuffer gone = std::move(kept.buffer);
  }
}

}  // namespace gpushm
