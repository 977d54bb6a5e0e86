// Moves bytes between a file and GPU memory: two chunks of pinned host memory and two streams, so
// that reading the file and copying to the GPU overlap. The library and the broker's loader share
// it.
//
// Threads: a call belongs to one thread, whose current context it uses; it returns when all of its
// work on the GPU has ended, also when it fails.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>

#include "runtime/base/status.h"
#include "runtime/driver/cuda_api.h"

namespace gpushm {

// 0 for `chunk_bytes` below. With two chunks in flight, larger ones gain nothing on a disk or page
// cache, and pinning costs time by the byte.
inline constexpr uint64_t kTransferChunkBytes = uint64_t{64} << 20;
inline constexpr uint64_t kMinTransferChunkBytes = uint64_t{64} << 10;
inline constexpr uint64_t kMaxTransferChunkBytes = uint64_t{1} << 30;

// Called between chunks and at the end with the bytes that have arrived; false stops: kBusy.
using TransferProgress = std::function<bool(uint64_t done_bytes)>;

// Copies the first `size_bytes` of the file, or as many as it has, from offset 0 whatever its
// position, to `to`. Returns the bytes copied.
Result<uint64_t> CopyFileToDevice(const CudaApi& api, int file, CUdeviceptr to, uint64_t size_bytes,
                                  uint64_t chunk_bytes, const TransferProgress& progress);

// Writes `size_bytes` from `from` to the file, from offset 0.
Result<uint64_t> CopyDeviceToFile(const CudaApi& api, CUdeviceptr from, uint64_t size_bytes,
                                  int file, uint64_t chunk_bytes, const TransferProgress& progress);

}  // namespace gpushm
