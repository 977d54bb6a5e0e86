// Moves bytes between a file and GPU memory through a ring of chunks of pinned host memory. Each
// chunk has its own stream: while the file is read into one chunk, the GPU fetches the others. A
// load from the page cache also goes by the file's own pages (page_load.h).
//
// Threads: a call belongs to one thread and uses its current context. It returns when all of its
// work on the GPU has ended, also on failure. Helper threads exist only during the call.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "platform/base/status.h"
#include "platform/driver/cuda_api.h"
#include "platform/transfer/file_way.h"

namespace gpushm {

class GdsFile;
class PageWindow;

// The defaults for 0 in a job; docs/guides/transfers.md has the measurements. Two chunks overlap
// file and GPU, and the third absorbs a short delay of the file.
inline constexpr uint64_t kTransferChunkBytes = uint64_t{16} << 20;
inline constexpr uint32_t kTransferChunks = 3;
inline constexpr uint64_t kMinTransferChunkBytes = uint64_t{64} << 10;
inline constexpr uint64_t kMaxTransferChunkBytes = uint64_t{1} << 30;
inline constexpr uint32_t kMinTransferChunks = 2;
inline constexpr uint32_t kMaxTransferChunks = 16;
inline constexpr uint32_t kMaxTransferThreads = 64;
// While a stream has no data, `progress` is called this often.
inline constexpr int kStreamStepMs = 50;
// A smaller chunk cannot measure the interconnect: starting a copy costs 10 us, the time of 512
// KiB.
inline constexpr uint64_t kMeasuredBytes = uint64_t{16} << 20;

// Called with the number of bytes moved: between chunks, at the end, and while a stream has no
// data. False stops the transfer: kBusy.
using TransferProgress = std::function<bool(uint64_t done_bytes)>;

// A range of the file and its place in the buffer.
struct TransferSegment {
  uint64_t file_offset = 0;
  uint64_t buffer_offset = 0;
  uint64_t bytes = 0;
};

struct TransferJob {
  int file = -1;
  FileWay way = FileWay::kCached;  // With kDirect and kGds, the descriptor has O_DIRECT.
  // With kCached, to load: uses kPages where that is better and the driver accepts the pages.
  bool try_pages = false;
  // Where registered pages stay; only its owner knows when they are not in the way. Null: until the
  // call returns.
  PageWindow* window = nullptr;
  // With kGds, the same file as OpenGds opened it. Nobody else needs it once the transfer has
  // ended.
  std::shared_ptr<const GdsFile> gds{};
  CUdeviceptr address = 0;
  // To load: the file's size, or the room for a stream. To save: the buffer's size, or with
  // segments the file's.
  uint64_t size_bytes = 0;
  // Empty: each byte of the file belongs at the same offset of the buffer. Otherwise only these
  // ranges are moved. They are sorted by file_offset, do not overlap, and are within the file and
  // the buffer. Neither with kGds nor with kStream to load.
  std::span<const TransferSegment> segments{};
  // To save with segments: the first bytes of the file, which do not come from the buffer.
  std::span<const std::byte> head{};
  uint64_t chunk_bytes = 0;
  uint32_t chunks = 0;
  // Helpers that read a file in addition to the calling thread, as far as there is work for them. A
  // stream and a save use none.
  uint32_t threads = 0;
  // Speed of the interconnect, if known; 0: measured if the first chunk is large enough.
  uint64_t link_bytes_per_second = 0;
  TransferProgress progress{};
};

struct TransferReport {
  uint64_t bytes = 0;
  // As in the job, or kPages after `try_pages`. Helpers may have copied a part of the file.
  FileWay way = FileWay::kAuto;
  // From the first byte to the last one, without pinning, measuring the interconnect, and fsync.
  int64_t moving_ns = 0;
  // Speed between pinned host memory and the GPU: the best of a few copies of one chunk. 0: not
  // measured.
  uint64_t link_bytes_per_second = 0;
};

// Copies the first `size_bytes` of the file, or all of a shorter file, from offset 0 whatever its
// position. Copies a stream from its position to its end; more than `size_bytes` is
// kInvalidArgument. The report counts the bytes of the file, also those outside of all segments.
Result<TransferReport> CopyFileToDevice(const CudaApi& api, const TransferJob& job);

// Writes the buffer to the file from offset 0, or to the stream. With segments, head and segments
// cover the file.
Result<TransferReport> CopyDeviceToFile(const CudaApi& api, const TransferJob& job);

// What every method does between chunks.
inline Result<void> CallProgress(const TransferProgress& progress, uint64_t done_bytes) {
  if (!progress || progress(done_bytes)) return {};
  return Fail(Code::kBusy, Concat("stopped after ", done_bytes, " bytes"));
}

}  // namespace gpushm
