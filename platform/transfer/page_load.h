// Loads from the page cache without a copy by the processor: the GPU fetches the file's pages.
//
// Threads: one, with a current context. The driver holds a lock while it registers pages, so other
// threads must not call it meanwhile: helpers only read the file.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "platform/base/status.h"
#include "platform/driver/cuda_api.h"
#include "platform/driver/device.h"
#include "platform/driver/stream_fence.h"
#include "platform/transfer/file_pages.h"
#include "platform/transfer/pinned_pool.h"
#include "platform/transfer/transfer_engine.h"

namespace gpushm {

// How a load from the page cache is made.
enum class PageUse {
  kNone,   // Copies only.
  kAlone,  // Pages only, without helpers.
  kMixed,  // Helpers read from the file's end, while the calling thread fetches pages from its
           // beginning.
};
// `threads`: as in TransferJob. `pieces`: its segments, or 1.
PageUse ChoosePages(uint32_t threads, PageSize pages, uint64_t size_bytes, size_t pieces);
// Helpers that read in a kMixed load.
uint32_t MixedHelpers(uint32_t threads);

// What nobody has taken yet of a file.
class FileRest {
 public:
  explicit FileRest(uint64_t size_bytes) : end_(size_bytes) {}

  FileRange TakeFront(uint64_t most_bytes) {
    const FileRange taken{begin_, std::min(most_bytes, end_ - begin_)};
    begin_ += taken.bytes;
    return taken;
  }
  // Down to a multiple of `unit_bytes`.
  FileRange TakeBack(uint64_t unit_bytes) {
    if (empty()) return {};
    const uint64_t from = std::max(begin_, (end_ - 1) / unit_bytes * unit_bytes);
    return {from, std::exchange(end_, from) - from};
  }
  // Undoes the last TakeFront.
  void PutBack(const FileRange& front) { begin_ = front.offset; }
  bool empty() const { return begin_ == end_; }

 private:
  uint64_t begin_ = 0;
  uint64_t end_;
};

// The part of a load that goes by pages.
class PageLoad {
 public:
  // Registers the first part and queues its copies. An error: the driver, the file system or the
  // memory refuse it, and nothing was taken from `rest`. All arguments must outlive the object; the
  // pages stay in `window`.
  static Result<std::unique_ptr<PageLoad>> Begin(const CudaApi& api, const TransferJob& job,
                                                 PageUse use, FileRest* rest, PageWindow* window);

  // For kMixed: registers one more part and queues its copies. False: nothing is left, the driver
  // refuses the part, the window is full, or enough is queued.
  Result<bool> Step();
  // For kAlone: takes everything, unless a part is refused or nothing can be unregistered. `tick`
  // is called between parts; an error ends the load.
  Result<void> Run(const std::function<Result<void>()>& tick);
  // Waits for all copies.
  Result<void> Wait();
  // As known from the last call.
  uint64_t arrived_bytes() const { return arrived_bytes_; }

  // Of the first part, at most kMeasuredBytes; CopyFirst copies them once more and waits for it.
  uint64_t first_bytes() const { return std::min({part_bytes_, job_.size_bytes, kMeasuredBytes}); }
  Result<void> CopyFirst() const;

  PageLoad(const PageLoad&) = delete;
  PageLoad& operator=(const PageLoad&) = delete;
  // Waits for the copies.
  ~PageLoad() { api_.cuStreamSynchronize(stream_.get()); }

 private:
  struct Queued {
    StreamFence behind;
    uint64_t bytes;
  };
  PageLoad(const CudaApi& api, const TransferJob& job, uint64_t part_bytes, FileRest* rest,
           PageWindow* window, FilePages* pages, Stream stream)
      : api_(api),
        job_(job),
        part_bytes_(part_bytes),
        rest_(*rest),
        window_(*window),
        pages_(*pages),
        stream_(std::move(stream)) {}

  Result<void> CopyPiece(const TransferSegment& piece);
  // Of a small piece, which the processor must not read from a mapping.
  Result<void> CopyRead(const TransferSegment& piece);
  Result<bool> TakePart();
  Result<void> Queue(const FileRange& part);
  void CountArrived();

  const CudaApi& api_;
  const TransferJob& job_;
  const uint64_t part_bytes_;
  FileRest& rest_;
  PageWindow& window_;
  FilePages& pages_;
  Stream stream_;
  std::optional<PooledBuffer> small_;  // For CopyRead.
  uint64_t small_used_bytes_ = 0;      // By copies that may be under way.
  std::deque<Queued> queued_;
  uint64_t arrived_bytes_ = 0;
  bool refused_ = false;
};

}  // namespace gpushm
