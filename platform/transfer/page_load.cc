#include "platform/transfer/page_load.h"

#include <unistd.h>

#include <cerrno>

#include "platform/driver/stream_waits.h"
#include "platform/transfer/file_copies.h"

namespace gpushm {
namespace {

// Bytes of one registration: a fraction of the window, within bounds. All are multiples of every
// page size. Small ones cost more calls; the GPU has nothing to do during the first one.
constexpr uint64_t kPartsOfWindow = 16;
constexpr uint64_t kLeastPartBytes = uint64_t{4} << 20;
constexpr uint64_t kMostPartBytes = uint64_t{128} << 20;
// Beside helpers: 0.6 ms, in which a chunk that they have read waits for its copy.
constexpr uint64_t kMostMixedPartBytes = uint64_t{16} << 20;
// Of a smaller piece, the driver's processor may read the bytes itself (up to 24 KiB on an H200),
// and die where the file was cut. It is read into pinned memory instead,
constexpr uint64_t kLeastPieceBytes = uint64_t{64} << 10;
// of this size;
constexpr uint64_t kSmallPiecesBytes = uint64_t{1} << 20;
// and a file of mostly small pieces is copied.
constexpr uint64_t kLeastMeanPieceBytes = uint64_t{256} << 10;
// With a smaller window, copies are as good.
constexpr uint64_t kLeastWindowBytes = uint64_t{64} << 20;
// Parts under way beside helpers. More would hold up the copies of their chunks.
constexpr size_t kMostMixedQueued = 4;
// From so many helpers on they are put to use,
constexpr uint32_t kMixedFrom = 3;
// and more of them only cost.
constexpr uint32_t kMostMixedHelpers = 5;

}  // namespace

PageUse ChoosePages(uint32_t threads, PageSize pages, uint64_t size_bytes, size_t pieces) {
  if (pages == PageSize::kNone || size_bytes < kPagesMinBytes) return PageUse::kNone;
  if (size_bytes / std::max<size_t>(pieces, 1) < kLeastMeanPieceBytes) return PageUse::kNone;
  if (threads < kMixedFrom) return PageUse::kAlone;
  return pages == PageSize::kSmall ? PageUse::kNone : PageUse::kMixed;
}

uint32_t MixedHelpers(uint32_t threads) { return std::min(threads, kMostMixedHelpers); }

Result<std::unique_ptr<PageLoad>> PageLoad::Begin(const CudaApi& api, const TransferJob& job,
                                                  PageUse use, FileRest* rest, PageWindow* window) {
  if (window->most_bytes() < kLeastWindowBytes) {
    return Fail(
        Code::kExhausted,
        Concat("only ", window->most_bytes(), " bytes of pages may be registered at a time"),
        "give the container more memory");
  }
  const bool alone = use == PageUse::kAlone;
  const uint64_t part_bytes = std::clamp(window->most_bytes() / kPartsOfWindow, kLeastPartBytes,
                                         alone ? kMostPartBytes : kMostMixedPartBytes) /
                              kLeastPartBytes * kLeastPartBytes;
  // Beside helpers it would take longer than copies.
  if ((alone || job.way == FileWay::kPages) && !window->HasRoom(part_bytes)) window->Unregister();
  if (!window->HasRoom(part_bytes)) {
    return Fail(Code::kExhausted,
                Concat(window->registered_bytes(), " bytes of pages are registered"),
                "copy the rest");
  }
  Result<Stream> stream = MakeRunningStream(api);
  if (!stream) return std::unexpected(stream.error());
  Result<FilePages> pages = FilePages::Map(api, job.file, job.size_bytes);
  if (!pages) return std::unexpected(pages.error());
  const FileRange first{0, std::min(part_bytes, job.size_bytes)};
  if (auto done = pages->Register(first); !done) return std::unexpected(done.error());
  std::unique_ptr<PageLoad> load(new PageLoad(api, job, part_bytes, rest, window,
                                              &window->Add(std::move(*pages)), std::move(*stream)));
  if (auto done = load->Queue(first); !done) return std::unexpected(done.error());
  rest->TakeFront(first.bytes);
  return load;
}

Result<void> PageLoad::Queue(const FileRange& part) {
  const auto copy = [this](const TransferSegment& piece) { return CopyPiece(piece); };
  if (auto done = ForEachPiece(job_, part.offset, part.bytes, copy); !done) return done;
  Result<StreamFence> behind = StreamFence::Record(api_, stream_.get());
  if (!behind) return std::unexpected(behind.error());
  queued_.push_back({std::move(*behind), part.bytes});
  return {};
}

Result<void> PageLoad::CopyPiece(const TransferSegment& piece) {
  if (piece.bytes < kLeastPieceBytes) return CopyRead(piece);
  return api_.Check(
      api_.cuMemcpyHtoDAsync(job_.address + piece.buffer_offset, pages_.at(piece.file_offset),
                             piece.bytes, stream_.get()),
      "cuMemcpyHtoDAsync from a file's pages");
}

Result<void> PageLoad::CopyRead(const TransferSegment& piece) {
  if (!small_) {
    Result<PooledBuffer> taken = PooledBuffer::Take(api_, kSmallPiecesBytes);
    if (!taken) return std::unexpected(taken.error());
    small_.emplace(std::move(*taken));
  }
  if (small_used_bytes_ + piece.bytes > kSmallPiecesBytes) {
    if (auto done = Wait(); !done) return done;
    small_used_bytes_ = 0;
  }
  std::byte* const to = small_->data() + small_used_bytes_;
  for (uint64_t have = 0; have < piece.bytes;) {
    const ssize_t got = pread(job_.file, to + have, piece.bytes - have,
                              static_cast<off_t>(piece.file_offset + have));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FailSystem(errno, "read the file");
    if (got == 0) {
      return Fail(Code::kBusy,
                  Concat("the file ended after ", piece.file_offset + have, " of ", job_.size_bytes,
                         " bytes"),
                  "load it when nobody writes it");
    }
    have += static_cast<uint64_t>(got);
  }
  small_used_bytes_ += piece.bytes;
  return api_.Check(
      api_.cuMemcpyHtoDAsync(job_.address + piece.buffer_offset, to, piece.bytes, stream_.get()),
      "cuMemcpyHtoDAsync");
}

void PageLoad::CountArrived() {
  for (; !queued_.empty() && queued_.front().behind.HasPassed(); queued_.pop_front()) {
    arrived_bytes_ += queued_.front().bytes;
  }
}

Result<void> PageLoad::Wait() {
  if (auto done = api_.Check(api_.cuStreamSynchronize(stream_.get()), "cuStreamSynchronize");
      !done) {
    return done;
  }
  CountArrived();
  return {};
}

Result<bool> PageLoad::TakePart() {
  if (refused_ || rest_.empty()) return false;
  const FileRange part = rest_.TakeFront(part_bytes_);
  if (!pages_.Register(part)) {
    // Perhaps the file was cut.
    rest_.PutBack(part);
    refused_ = true;
    return false;
  }
  if (auto done = Queue(part); !done) return std::unexpected(done.error());
  return true;
}

Result<bool> PageLoad::Step() {
  CountArrived();
  if (queued_.size() >= kMostMixedQueued) return false;
  return window_.HasRoom(part_bytes_) ? TakePart() : Result<bool>(false);
}

Result<void> PageLoad::Run(const std::function<Result<void>()>& tick) {
  for (;;) {
    CountArrived();
    if (auto done = tick(); !done) return done;
    if (!rest_.empty() && !window_.HasRoom(part_bytes_)) {
      if (auto done = Wait(); !done) return done;
      window_.Unregister();
      if (!window_.HasRoom(part_bytes_)) return {};  // A stream waits meanwhile.
    }
    const Result<bool> more = TakePart();
    if (!more) return std::unexpected(more.error());
    if (!*more) return Wait();
  }
}

Result<void> PageLoad::CopyFirst() const {
  const auto done =
      api_.Check(api_.cuMemcpyHtoDAsync(job_.address, pages_.at(0), first_bytes(), stream_.get()),
                 "cuMemcpyHtoDAsync from a file's pages");
  if (!done) return done;
  return api_.Check(api_.cuStreamSynchronize(stream_.get()), "cuStreamSynchronize");
}

}  // namespace gpushm
