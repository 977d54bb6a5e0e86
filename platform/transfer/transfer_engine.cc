#include "platform/transfer/transfer_engine.h"

#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "platform/base/clock.h"
#include "platform/driver/device.h"
#include "platform/driver/stream_waits.h"
#include "platform/transfer/file_copies.h"
#include "platform/transfer/file_io.h"
#include "platform/transfer/file_pages.h"
#include "platform/transfer/gds_transfer.h"
#include "platform/transfer/page_load.h"
#include "platform/transfer/pinned_pool.h"

namespace gpushm {
namespace {

// Minimum number of chunks of a transfer if the caller leaves their size open, unless they would be
// smaller than kLeastDividedBytes.
constexpr uint64_t kLeastTurns = 6;
constexpr uint64_t kLeastDividedBytes = uint64_t{4} << 20;

// A chunk in progress: host memory, and the stream that fills or drains it.
class Lane {
 public:
  static Result<Lane> Create(const CudaApi& api, uint64_t chunk_bytes) {
    Result<Stream> stream = MakeRunningStream(api);
    if (!stream) return std::unexpected(stream.error());
    Result<PooledBuffer> memory = PooledBuffer::Take(api, chunk_bytes);
    if (!memory) return std::unexpected(memory.error());
    return Lane(api, std::move(*stream), std::move(*memory));
  }

  Lane(Lane&&) = default;
  Lane& operator=(Lane&&) = delete;
  // The host memory must not be freed while the GPU still uses it.
  ~Lane() {
    if (stream_.get() != nullptr) api_->cuStreamSynchronize(stream_.get());
  }

  Result<void> Wait() const {
    return api_->Check(api_->cuStreamSynchronize(stream_.get()), "cuStreamSynchronize");
  }
  bool IsDone() const { return api_->cuStreamQuery(stream_.get()) != CUDA_ERROR_NOT_READY; }
  // Begins to copy the chunk's bytes that belong into the buffer, or come from there.
  Result<void> Copy(const TransferJob& job, CopyTo to) const {
    return QueueCopies(*api_, job, to, memory_.data(), offset, size_bytes, stream_.get());
  }
  std::byte* data() const { return memory_.data(); }

  // Position in the file of the chunk in progress; 0 bytes: none.
  uint64_t offset = 0;
  uint64_t size_bytes = 0;
  uint64_t wanted_bytes = 0;  // To load: what the reader was asked for.

 private:
  Lane(const CudaApi& api, Stream stream, PooledBuffer memory)
      : api_(&api), memory_(std::move(memory)), stream_(std::move(stream)) {}
  const CudaApi* api_;
  PooledBuffer memory_;
  Stream stream_;
};

uint64_t ChunkFor(const TransferJob& job) {
  // Small transfers are divided, too, because nothing overlaps within a chunk.
  const uint64_t divided =
      std::clamp(job.size_bytes / kLeastTurns, kLeastDividedBytes, kTransferChunkBytes);
  const uint64_t wanted = job.chunk_bytes == 0 ? divided : job.chunk_bytes;
  const uint64_t bounded = std::clamp(wanted, kMinTransferChunkBytes, kMaxTransferChunkBytes);
  const uint64_t needed = std::min(bounded, std::max<uint64_t>(job.size_bytes, 1));
  return RoundUp(needed, kDirectAlignBytes);  // O_DIRECT moves whole blocks.
}

Result<std::vector<Lane>> CreateLanes(const CudaApi& api, const TransferJob& job, uint64_t chunk) {
  const uint32_t wanted = std::clamp(job.chunks == 0 ? kTransferChunks : job.chunks,
                                     kMinTransferChunks, kMaxTransferChunks);
  // Not more lanes than chunks: pinning takes time for each byte.
  const uint64_t useful = std::max<uint64_t>((job.size_bytes + chunk - 1) / chunk, 1);
  std::vector<Lane> lanes;
  lanes.reserve(wanted);
  for (uint64_t i = 0; i < std::min<uint64_t>(wanted, useful); ++i) {
    Result<Lane> lane = Lane::Create(api, chunk);
    if (!lane) return std::unexpected(lane.error());
    lanes.push_back(std::move(*lane));
  }
  return lanes;
}

// One transfer in progress: its lanes in a ring, and its future report.
class Transfer {
 public:
  Transfer(const CudaApi& api, const TransferJob& job)
      : api_(api), job_(job), chunk_(ChunkFor(job)), rest_(job.size_bytes) {
    report_.way = job.way;
    report_.link_bytes_per_second = job.link_bytes_per_second;
  }

  Result<TransferReport> Load();
  Result<TransferReport> Save();

 private:
  Result<void> Start();
  Result<void> Tick() const {
    return CallProgress(job_.progress, report_.bytes + (pages_ ? pages_->arrived_bytes() : 0));
  }
  void NoteEnd() { report_.moving_ns = MonotonicNs() - start_ns_ - measuring_ns_; }
  // Waits for the lane's copy; its bytes have then arrived.
  Result<void> Arrive(Lane& lane);
  template <typename Copy>
  Result<void> Measure(uint64_t size_bytes, Copy copy);
  // Sets pages_ if the load goes by pages.
  Result<PageUse> BeginPages();
  // Copies what nobody has taken of the file, or a stream to its end.
  Result<void> LoadByCopies(uint32_t helpers);
  Result<void> CopyRest(FileReader& reader);
  Result<void> ReadUpTo(size_t last, FileReader& reader);
  template <typename Ready>
  Result<void> FetchPagesUntil(Ready ready);
  Result<void> Drain(Lane& lane, FileWriter& writer);

  const CudaApi& api_;
  const TransferJob& job_;
  const uint64_t chunk_;
  FileRest rest_;
  std::optional<PageWindow> own_window_;
  std::unique_ptr<PageLoad> pages_;  // It takes from the front, and the lanes from the back.
  std::vector<Lane> lanes_;
  size_t begun_ = 0;     // Number of chunks whose reading has begun,
  size_t turn_ = 0;      // and whose copy has begun.
  bool at_end_ = false;  // The file or stream has ended.
  TransferReport report_;
  int64_t start_ns_ = 0;
  int64_t measuring_ns_ = 0;
};

Result<void> Transfer::Start() {
  if (lanes_.empty()) {
    Result<std::vector<Lane>> lanes = CreateLanes(api_, job_, chunk_);
    if (!lanes) return std::unexpected(lanes.error());
    lanes_ = std::move(*lanes);
  }
  if (start_ns_ == 0) start_ns_ = MonotonicNs();
  return {};
}

// Uses the time in which a lane or a reader is not ready.
template <typename Ready>
Result<void> Transfer::FetchPagesUntil(Ready ready) {
  while (pages_ && !ready()) {
    const Result<bool> more = pages_->Step();
    if (!more) return std::unexpected(more.error());
    if (!*more) break;
  }
  return {};
}

Result<void> Transfer::Arrive(Lane& lane) {
  if (lane.size_bytes == 0) return {};
  if (auto done = FetchPagesUntil([&] { return lane.IsDone(); }); !done) return done;
  if (auto done = lane.Wait(); !done) return done;
  report_.bytes += std::exchange(lane.size_bytes, 0);
  return {};
}

// The bytes go to their final place, so copying them several times is harmless.
template <typename Copy>
Result<void> Transfer::Measure(uint64_t size_bytes, Copy copy) {
  if (report_.link_bytes_per_second != 0 || size_bytes < kMeasuredBytes) return {};
  if (!job_.segments.empty()) return {};  // Pieces can be small.
  const int64_t start_ns = MonotonicNs();
  const Result<uint64_t> measured = MeasureLink(size_bytes, copy);
  if (!measured) return std::unexpected(measured.error());
  report_.link_bytes_per_second = *measured;
  measuring_ns_ += MonotonicNs() - start_ns;
  return {};
}

// Begins to read chunks up to number `last`, each into a lane whose copy has arrived. Beside pages,
// a chunk that has been read goes first: its copy waits otherwise until another part is registered.
Result<void> Transfer::ReadUpTo(size_t last, FileReader& reader) {
  for (; begun_ <= last && !rest_.empty(); ++begun_) {
    Lane& lane = lanes_[begun_ % lanes_.size()];
    const auto has_chunk = [&] { return pages_ && begun_ > turn_ + 1 && reader.IsReady(); };
    if (auto done = FetchPagesUntil([&] { return lane.IsDone() || has_chunk(); }); !done) {
      return done;
    }
    if (has_chunk() && !lane.IsDone()) return {};
    if (auto done = Arrive(lane); !done) return done;
    if (auto done = Tick(); !done) return done;
    const FileRange next = pages_ ? rest_.TakeBack(chunk_) : rest_.TakeFront(chunk_);
    if (next.bytes == 0) return {};
    lane.offset = next.offset;
    lane.wanted_bytes = next.bytes;
    reader.Begin(lane.data(), next.bytes, next.offset);
  }
  return {};
}

Result<void> Transfer::CopyRest(FileReader& reader) {
  // So helpers can continue with the next chunks while the slowest of them ends this one.
  const size_t ahead = reader.ReadsAhead() ? lanes_.size() - 1 : 1;
  // The first chunk is read alone: its copy measures the interconnect while nothing else is in
  // progress.
  if (auto done = ReadUpTo(turn_, reader); !done) return done;
  for (; turn_ < begun_ && !at_end_; ++turn_) {
    Lane& lane = lanes_[turn_ % lanes_.size()];
    if (auto done = FetchPagesUntil([&] { return reader.IsReady(); }); !done) return done;
    const Result<uint64_t> part = reader.End();
    if (!part) return std::unexpected(part.error());
    at_end_ = *part < lane.wanted_bytes;
    if (*part == 0) break;
    lane.size_bytes = *part;
    const auto copy = [&] { return lane.Copy(job_, CopyTo::kDevice); };
    if (!pages_) {
      const auto copy_alone = [&] {
        auto done = copy();
        return done ? lane.Wait() : done;
      };
      if (auto done = Measure(lane.size_bytes, copy_alone); !done) return done;
    }
    if (auto done = copy(); !done) return done;
    if (at_end_) continue;
    // The other lanes' copies run while these are filled.
    if (auto done = ReadUpTo(turn_ + ahead, reader); !done) return done;
  }
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (auto done = Arrive(lanes_[(turn_ + i) % lanes_.size()]); !done) return done;
  }
  return {};
}

Result<void> Transfer::LoadByCopies(uint32_t helpers) {
  if (at_end_ || (rest_.empty() && job_.way != FileWay::kStream)) return {};
  if (auto done = Start(); !done) return done;
  const StreamTick tick = [this] { return Tick(); };
  const FileWay way = job_.way == FileWay::kPages ? FileWay::kCached : job_.way;
  FileReader reader(job_.file, way, helpers, job_.size_bytes, tick);
  if (auto done = CopyRest(reader); !done) return done;
  NoteEnd();
  if (way != FileWay::kStream || report_.bytes != job_.size_bytes) return {};
  const Result<bool> at_end = reader.AtEnd();
  if (!at_end) return std::unexpected(at_end.error());
  if (*at_end) return {};
  return Fail(Code::kInvalidArgument,
              Concat("the stream has more than the ", job_.size_bytes, " bytes of the buffer"),
              "load into a larger buffer");
}

Result<PageUse> Transfer::BeginPages() {
  const bool asked = job_.way == FileWay::kPages;
  if (!asked && !job_.try_pages) return PageUse::kNone;
  PageUse use =
      ChoosePages(job_.threads, PagesOf(job_.file), job_.size_bytes, job_.segments.size());
  if (asked && use == PageUse::kNone) use = PageUse::kAlone;
  // While a stream waits, pages cannot be unregistered.
  if (use == PageUse::kNone || (!asked && StreamWaits::Instance(api_).AnyPending())) {
    return PageUse::kNone;
  }
  // Pinned before the first byte moves: the driver does nothing else meanwhile.
  if (use == PageUse::kMixed) {
    if (auto done = Start(); !done) return std::unexpected(done.error());
  }
  start_ns_ = MonotonicNs();
  PageWindow* const window = job_.window != nullptr ? job_.window : &own_window_.emplace();
  Result<std::unique_ptr<PageLoad>> begun = PageLoad::Begin(api_, job_, use, &rest_, window);
  if (begun) {
    pages_ = std::move(*begun);
    report_.way = FileWay::kPages;
    return use;
  }
  if (asked) {
    return Fail(Code::kUnsupported,
                Concat("the pages of this file cannot be used: ", begun.error().what()),
                "let gpushm choose the method, or use the page cache");
  }
  start_ns_ = 0;
  return PageUse::kNone;
}

Result<TransferReport> Transfer::Load() {
  const Result<PageUse> use = BeginPages();
  if (!use) return std::unexpected(use.error());
  if (pages_) {
    if (auto done = Measure(pages_->first_bytes(), [this] { return pages_->CopyFirst(); }); !done) {
      return std::unexpected(done.error());
    }
  }
  if (*use == PageUse::kAlone) {
    if (auto done = pages_->Run([this] { return Tick(); }); !done) {
      return std::unexpected(done.error());
    }
    NoteEnd();
  }
  const uint32_t helpers = *use == PageUse::kMixed ? MixedHelpers(job_.threads) : job_.threads;
  if (auto done = LoadByCopies(helpers); !done) return std::unexpected(done.error());
  if (pages_) {
    if (auto done = pages_->Wait(); !done) return std::unexpected(done.error());
    if (*use == PageUse::kMixed) NoteEnd();
    report_.bytes += pages_->arrived_bytes();
    pages_.reset();
    // The pages of a file that was cut meanwhile still had their bytes.
    struct stat info{};
    if (fstat(job_.file, &info) == 0) {
      report_.bytes = std::min(report_.bytes, static_cast<uint64_t>(info.st_size));
    }
  }
  if (auto done = Tick(); !done) return std::unexpected(done.error());
  return report_;
}

Result<void> Transfer::Drain(Lane& lane, FileWriter& writer) {
  if (lane.size_bytes == 0) return {};
  if (auto done = lane.Wait(); !done) return done;
  if (auto done = writer.Write(lane.data(), lane.size_bytes, lane.offset); !done) return done;
  report_.bytes += std::exchange(lane.size_bytes, 0);
  return Tick();
}

Result<TransferReport> Transfer::Save() {
  if (auto done = Start(); !done) return std::unexpected(done.error());
  const StreamTick tick = [this] { return Tick(); };
  FileWriter writer(job_.file, job_.way, tick);
  size_t turn = 0;
  for (uint64_t offset = 0; offset < job_.size_bytes; offset += chunk_, ++turn) {
    Lane& lane = lanes_[turn % lanes_.size()];
    // While the GPU fills the other lanes, this one's bytes go to the file.
    if (auto done = Drain(lane, writer); !done) return std::unexpected(done.error());
    lane.offset = offset;
    lane.size_bytes = std::min(chunk_, job_.size_bytes - offset);
    const auto copy = [&] {
      if (offset < job_.head.size()) {
        const auto head = job_.head.subspan(offset);
        std::copy_n(head.begin(), std::min<uint64_t>(head.size(), lane.size_bytes), lane.data());
      }
      return lane.Copy(job_, CopyTo::kHost);
    };
    const auto copy_alone = [&] {
      auto done = copy();
      return done ? lane.Wait() : done;
    };
    if (auto done = Measure(lane.size_bytes, copy_alone); !done) {
      return std::unexpected(done.error());
    }
    if (auto done = copy(); !done) return std::unexpected(done.error());
  }
  for (size_t i = 0; i < lanes_.size(); ++i, ++turn) {
    if (auto done = Drain(lanes_[turn % lanes_.size()], writer); !done) {
      return std::unexpected(done.error());
    }
  }
  if (auto done = writer.Finish(report_.bytes); !done) return std::unexpected(done.error());
  NoteEnd();
  return report_;
}

}  // namespace

Result<TransferReport> CopyFileToDevice(const CudaApi& api, const TransferJob& job) {
  return job.way == FileWay::kGds ? LoadByGds(api, job) : Transfer(api, job).Load();
}

Result<TransferReport> CopyDeviceToFile(const CudaApi& api, const TransferJob& job) {
  return job.way == FileWay::kGds ? SaveByGds(api, job) : Transfer(api, job).Save();
}

}  // namespace gpushm
