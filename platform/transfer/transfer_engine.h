// Moves bytes between a file and GPU memory, through a ring of chunks of pinned host memory, each
// with a stream of its own: while the file is read into one, the GPU fetches the others. The
// library and the broker's loader share it.
//
// Threads: a call belongs to one thread, whose current context it uses; it returns when all of its
// work on the GPU has ended, also when it fails. Helper threads exist only during the call.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "platform/base/status.h"
#include "platform/driver/cuda_api.h"
#include "platform/transfer/file_way.h"

namespace gpushm {

class GdsFile;

// What 0 stands for in a job: docs/guides/transfers.md has the measurements. Two chunks overlap
// file and GPU, the third evens out a file that is slow for a moment.
inline constexpr uint64_t kTransferChunkBytes = uint64_t{16} << 20;
inline constexpr uint32_t kTransferChunks = 3;
inline constexpr uint64_t kMinTransferChunkBytes = uint64_t{64} << 10;
inline constexpr uint64_t kMaxTransferChunkBytes = uint64_t{1} << 30;
inline constexpr uint32_t kMinTransferChunks = 2;
inline constexpr uint32_t kMaxTransferChunks = 16;
inline constexpr uint32_t kMaxTransferThreads = 64;
// A stream that stands still is left so often to call `progress`.
inline constexpr int kStreamStepMs = 50;
// A chunk below tells nothing about the link: starting a copy costs 10 us, as long as 512 KiB take.
inline constexpr uint64_t kMeasuredBytes = uint64_t{16} << 20;

// Called between chunks, at the end, and while a stream has nothing, with the bytes that have
// arrived; false stops: kBusy.
using TransferProgress = std::function<bool(uint64_t done_bytes)>;

struct TransferJob {
  int file = -1;
  FileWay way = FileWay::kCached;  // kDirect, kGds: the descriptor has O_DIRECT.
  // With kGds, the same file: OpenGds. Others need it no more once the transfer has ended.
  std::shared_ptr<const GdsFile> gds{};
  CUdeviceptr address = 0;
  // To load: what the file has, or the room for a stream. To save: the buffer's.
  uint64_t size_bytes = 0;
  uint64_t chunk_bytes = 0;
  uint32_t chunks = 0;
  // That read a file beside the calling one, as far as there is work for them; a stream and a save
  // have none.
  uint32_t threads = 0;
  // What the link does, if it is known; 0: measured where the first chunk is large enough.
  uint64_t link_bytes_per_second = 0;
  TransferProgress progress{};
};

struct TransferReport {
  uint64_t bytes = 0;
  // From the first byte to the last one; without pinning, measuring the link, and fsync.
  int64_t moving_ns = 0;
  // Pinned host memory to the GPU, or back: the best of a few copies of one chunk. 0: not measured.
  uint64_t link_bytes_per_second = 0;
};

// Copies the first `size_bytes` of the file, or as many as it has, from offset 0 whatever its
// position; a stream from where it is to its end, and more than `size_bytes` is kInvalidArgument.
Result<TransferReport> CopyFileToDevice(const CudaApi& api, const TransferJob& job);

// Writes the buffer to the file from offset 0, or to the stream.
Result<TransferReport> CopyDeviceToFile(const CudaApi& api, const TransferJob& job);

// What every way does between chunks.
inline Result<void> CallProgress(const TransferProgress& progress, uint64_t done_bytes) {
  if (!progress || progress(done_bytes)) return {};
  return Fail(Code::kBusy, Concat("stopped after ", done_bytes, " bytes"));
}

}  // namespace gpushm
