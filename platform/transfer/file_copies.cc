#include "platform/transfer/file_copies.h"

#include <algorithm>
#include <array>
#include <utility>

#include "platform/base/clock.h"

namespace gpushm {
namespace {

// Pieces of one call. 1,000 copies of 64 KiB take 2.0 ms as a batch and 3.8 ms one by one (H200).
constexpr size_t kBatchPieces = 512;
// Fewer pieces go one by one.
constexpr size_t kBatchFrom = 8;
// Copies that measure the interconnect; the best one counts.
constexpr int kMeasuredCopies = 4;

// Collects pieces and queues them together.
class Pieces {
 public:
  Pieces(const CudaApi& api, CopyTo to, CUstream stream) : api_(api), to_(to), stream_(stream) {}

  Result<void> Add(CUdeviceptr device, std::byte* host, uint64_t size_bytes) {
    const auto address = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(host));
    targets_[count_] = to_ == CopyTo::kDevice ? device : address;
    sources_[count_] = to_ == CopyTo::kDevice ? address : device;
    sizes_[count_] = size_bytes;
    return ++count_ == kBatchPieces ? Flush() : Result<void>();
  }
  Result<void> Flush() {
    const size_t count = std::exchange(count_, 0);
    if (count >= kBatchFrom) {
      const CUresult queued = Batch(count);
      if (queued != CUDA_ERROR_NOT_SUPPORTED) return api_.Check(queued, "cuMemcpyBatchAsync");
    }
    for (size_t i = 0; i < count; ++i) {
      if (auto queued = One(i); !queued) return queued;
    }
    return {};
  }

 private:
  CUresult Batch(size_t count) {
    CopyAttributes attributes{};
    attributes.source_order = CopyAttributes::kInStreamOrder;
    size_t first = 0;  // The attributes apply from the first copy on.
    size_t failed = 0;
    return api_.copy_batch(targets_.data(), sources_.data(), sizes_.data(), count, &attributes,
                           &first, 1, &failed, stream_);
  }
  Result<void> One(size_t i) const {
    if (to_ == CopyTo::kDevice) {
      const void* const host = reinterpret_cast<const void*>(static_cast<uintptr_t>(sources_[i]));
      return api_.Check(api_.cuMemcpyHtoDAsync(targets_[i], host, sizes_[i], stream_),
                        "cuMemcpyHtoDAsync");
    }
    void* const host = reinterpret_cast<void*>(static_cast<uintptr_t>(targets_[i]));
    return api_.Check(api_.cuMemcpyDtoHAsync(host, sources_[i], sizes_[i], stream_),
                      "cuMemcpyDtoHAsync");
  }

  const CudaApi& api_;
  const CopyTo to_;
  const CUstream stream_;
  std::array<CUdeviceptr, kBatchPieces> targets_;
  std::array<CUdeviceptr, kBatchPieces> sources_;
  std::array<size_t, kBatchPieces> sizes_;
  size_t count_ = 0;
};

}  // namespace

Result<void> QueueCopies(const CudaApi& api, const TransferJob& job, CopyTo to, std::byte* host,
                         uint64_t offset, uint64_t size_bytes, CUstream stream) {
  Pieces pieces(api, to, stream);
  const auto added = ForEachPiece(job, offset, size_bytes, [&](const TransferSegment& piece) {
    return pieces.Add(job.address + piece.buffer_offset, host + (piece.file_offset - offset),
                      piece.bytes);
  });
  return added ? pieces.Flush() : added;
}

Result<uint64_t> MeasureLink(uint64_t size_bytes, const std::function<Result<void>()>& copy) {
  int64_t best_ns = INT64_MAX;
  for (int i = 0; i < kMeasuredCopies; ++i) {
    const int64_t start_ns = MonotonicNs();
    if (auto done = copy(); !done) return std::unexpected(done.error());
    best_ns = std::min(best_ns, std::max<int64_t>(MonotonicNs() - start_ns, 1));
  }
  return static_cast<uint64_t>(static_cast<double>(size_bytes) * 1e9 /
                               static_cast<double>(best_ns));
}

}  // namespace gpushm
