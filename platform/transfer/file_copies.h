// Copies between the GPU and host memory that has a range of a file.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "platform/base/status.h"
#include "platform/driver/cuda_api.h"
#include "platform/transfer/transfer_engine.h"

namespace gpushm {

enum class CopyTo { kDevice, kHost };

// Calls `take` with what [offset, offset + size_bytes) of the file has in the buffer, piece by
// piece, until it fails.
template <typename Take>
Result<void> ForEachPiece(const TransferJob& job, uint64_t offset, uint64_t size_bytes, Take take) {
  if (job.segments.empty()) return take(TransferSegment{offset, offset, size_bytes});
  const uint64_t end = offset + size_bytes;
  const auto ends_after = [](uint64_t at, const TransferSegment& segment) {
    return at < segment.file_offset + segment.bytes;
  };
  auto at = std::upper_bound(job.segments.begin(), job.segments.end(), offset, ends_after);
  for (; at != job.segments.end() && at->file_offset < end; ++at) {
    const uint64_t skipped = offset - std::min(offset, at->file_offset);
    const uint64_t from = at->file_offset + skipped;
    const uint64_t bytes = std::min(at->file_offset + at->bytes, end) - from;
    if (auto done = take(TransferSegment{from, at->buffer_offset + skipped, bytes}); !done) {
      return done;
    }
  }
  return {};
}

// Queues the copies of what [offset, offset + size_bytes) of the file has in the buffer, as the
// job's segments say. `host` is the place of the range's first byte. Does not allocate. Many
// pieces go as batches, where the driver has them.
Result<void> QueueCopies(const CudaApi& api, const TransferJob& job, CopyTo to, std::byte* host,
                         uint64_t offset, uint64_t size_bytes, CUstream stream);

// The interconnect's speed in bytes per second: the best of a few runs of `copy`, which copies
// `size_bytes` and waits for it while nothing else is in progress.
Result<uint64_t> MeasureLink(uint64_t size_bytes, const std::function<Result<void>()>& copy);

}  // namespace gpushm
