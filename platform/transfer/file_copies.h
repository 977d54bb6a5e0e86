// Copies between the GPU and host memory that has a range of a file.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#include "platform/base/status.h"
#include "platform/driver/cuda_api.h"
#include "platform/transfer/transfer_engine.h"

namespace gpushm {

enum class CopyTo { kDevice, kHost };

// Queues the copies of what [offset, offset + size_bytes) of the file has in the buffer, as the
// job's segments say. `host` is the place of the range's first byte. Does not allocate. Many
// pieces go as batches, where the driver has them.
Result<void> QueueCopies(const CudaApi& api, const TransferJob& job, CopyTo to, std::byte* host,
                         uint64_t offset, uint64_t size_bytes, CUstream stream);

// The interconnect's speed in bytes per second: the best of a few runs of `copy`, which copies
// `size_bytes` and waits for it while nothing else is in progress.
Result<uint64_t> MeasureLink(uint64_t size_bytes, const std::function<Result<void>()>& copy);

}  // namespace gpushm
