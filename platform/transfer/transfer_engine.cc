#include "platform/transfer/transfer_engine.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "platform/base/clock.h"
#include "platform/driver/device.h"
#include "platform/driver/stream_waits.h"
#include "platform/transfer/file_io.h"
#include "platform/transfer/gds_transfer.h"
#include "platform/transfer/pinned_pool.h"

namespace gpushm {
namespace {

// Copies of the first chunk that measure the interconnect; the best one counts.
constexpr int kMeasuredCopies = 4;
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
  // `piece` is within the chunk.
  Result<void> ToDevice(CUdeviceptr to, const TransferSegment& piece) const {
    return api_->Check(api_->cuMemcpyHtoDAsync(to + piece.buffer_offset,
                                               memory_.data() + (piece.file_offset - offset),
                                               piece.bytes, stream_.get()),
                       "cuMemcpyHtoDAsync");
  }
  Result<void> FromDevice(CUdeviceptr from, const TransferSegment& piece) const {
    return api_->Check(
        api_->cuMemcpyDtoHAsync(memory_.data() + (piece.file_offset - offset),
                                from + piece.buffer_offset, piece.bytes, stream_.get()),
        "cuMemcpyDtoHAsync");
  }
  std::byte* data() const { return memory_.data(); }

  // Position in the file of the chunk in progress; 0 bytes: none.
  uint64_t offset = 0;
  uint64_t size_bytes = 0;

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

// Calls `copy` for each piece of the chunk that belongs into the buffer, or comes from there.
template <typename Copy>
Result<void> ForEachPiece(const TransferJob& job, const Lane& lane, Copy copy) {
  const uint64_t end = lane.offset + lane.size_bytes;
  if (job.segments.empty()) {
    return copy(TransferSegment{lane.offset, lane.offset, lane.size_bytes});
  }
  const auto ends_after = [](uint64_t offset, const TransferSegment& segment) {
    return offset < segment.file_offset + segment.bytes;
  };
  auto at = std::upper_bound(job.segments.begin(), job.segments.end(), lane.offset, ends_after);
  for (; at != job.segments.end() && at->file_offset < end; ++at) {
    const uint64_t skipped = lane.offset - std::min(lane.offset, at->file_offset);
    const uint64_t from = at->file_offset + skipped;
    const uint64_t bytes = std::min(at->file_offset + at->bytes, end) - from;
    if (auto done = copy(TransferSegment{from, at->buffer_offset + skipped, bytes}); !done) {
      return done;
    }
  }
  return {};
}

// Measures what `copy` starts on the lane while nothing else is in progress. The bytes go to their
// final place, so copying them several times is harmless.
template <typename Copy>
Result<uint64_t> MeasureLink(const Lane& lane, Copy copy) {
  int64_t best_ns = INT64_MAX;
  for (int i = 0; i < kMeasuredCopies; ++i) {
    const int64_t start_ns = MonotonicNs();
    if (auto done = copy(); !done) return std::unexpected(done.error());
    if (auto done = lane.Wait(); !done) return std::unexpected(done.error());
    best_ns = std::min(best_ns, std::max<int64_t>(MonotonicNs() - start_ns, 1));
  }
  return static_cast<uint64_t>(static_cast<double>(lane.size_bytes) * 1e9 /
                               static_cast<double>(best_ns));
}

// One transfer in progress: its lanes in a ring, and its future report.
class Transfer {
 public:
  Transfer(const CudaApi& api, const TransferJob& job)
      : api_(api), job_(job), chunk_(ChunkFor(job)) {
    report_.link_bytes_per_second = job.link_bytes_per_second;
  }

  Result<TransferReport> Load();
  Result<TransferReport> Save();

 private:
  Result<void> Start();
  Result<void> Tick() const { return CallProgress(job_.progress, report_.bytes); }
  // Waits for the lane's copy; its bytes have then arrived.
  Result<void> Arrive(Lane& lane);
  template <typename Copy>
  Result<void> Measure(const Lane& lane, Copy copy);
  Result<void> ReadUpTo(size_t last, FileReader& reader);
  Result<void> Drain(Lane& lane, FileWriter& writer);

  const CudaApi& api_;
  const TransferJob& job_;
  const uint64_t chunk_;
  std::vector<Lane> lanes_;
  size_t begun_ = 0;  // Number of chunks whose reading has begun.
  TransferReport report_;
  int64_t start_ns_ = 0;
  int64_t measuring_ns_ = 0;
};

Result<void> Transfer::Start() {
  Result<std::vector<Lane>> lanes = CreateLanes(api_, job_, chunk_);
  if (!lanes) return std::unexpected(lanes.error());
  lanes_ = std::move(*lanes);
  start_ns_ = MonotonicNs();
  return {};
}

Result<void> Transfer::Arrive(Lane& lane) {
  if (lane.size_bytes == 0) return {};
  if (auto done = lane.Wait(); !done) return done;
  report_.bytes += std::exchange(lane.size_bytes, 0);
  return {};
}

template <typename Copy>
Result<void> Transfer::Measure(const Lane& lane, Copy copy) {
  if (report_.link_bytes_per_second != 0 || lane.size_bytes < kMeasuredBytes) return {};
  if (!job_.segments.empty()) return {};  // Pieces can be small.
  const int64_t start_ns = MonotonicNs();
  const Result<uint64_t> measured = MeasureLink(lane, copy);
  if (!measured) return std::unexpected(measured.error());
  report_.link_bytes_per_second = *measured;
  measuring_ns_ += MonotonicNs() - start_ns;
  return {};
}

// Begins to read chunks up to number `last`, each into a lane whose copy has arrived.
Result<void> Transfer::ReadUpTo(size_t last, FileReader& reader) {
  for (; begun_ <= last && begun_ * chunk_ < job_.size_bytes; ++begun_) {
    Lane& lane = lanes_[begun_ % lanes_.size()];
    if (auto done = Arrive(lane); !done) return done;
    if (auto done = Tick(); !done) return done;
    lane.offset = begun_ * chunk_;
    reader.Begin(lane.data(), std::min(chunk_, job_.size_bytes - lane.offset), lane.offset);
  }
  return {};
}

Result<TransferReport> Transfer::Load() {
  if (auto done = Start(); !done) return std::unexpected(done.error());
  const StreamTick tick = [this] { return Tick(); };
  FileReader reader(job_.file, job_.way, job_.threads, job_.size_bytes, tick);
  // So helpers can continue with the next chunks while the slowest of them ends this one.
  const size_t ahead = reader.ReadsAhead() ? lanes_.size() - 1 : 1;
  uint64_t offset = 0;
  size_t turn = 0;
  // The first chunk is read alone: its copy measures the interconnect while nothing else is in
  // progress.
  if (auto done = ReadUpTo(turn, reader); !done) return std::unexpected(done.error());
  for (bool at_end = false; turn < begun_ && !at_end; ++turn) {
    Lane& lane = lanes_[turn % lanes_.size()];
    const uint64_t wanted = std::min(chunk_, job_.size_bytes - offset);
    const Result<uint64_t> part = reader.End();
    if (!part) return std::unexpected(part.error());
    at_end = *part < wanted;
    if (*part == 0) break;
    lane.size_bytes = *part;
    const auto copy = [&] {
      return ForEachPiece(job_, lane, [&](const TransferSegment& piece) {
        return lane.ToDevice(job_.address, piece);
      });
    };
    if (auto done = Measure(lane, copy); !done) return std::unexpected(done.error());
    if (auto done = copy(); !done) return std::unexpected(done.error());
    offset += *part;
    if (at_end) continue;
    // The other lanes' copies run while these are filled.
    if (auto done = ReadUpTo(turn + ahead, reader); !done) return std::unexpected(done.error());
  }
  for (size_t i = 0; i < lanes_.size(); ++i, ++turn) {
    if (auto done = Arrive(lanes_[turn % lanes_.size()]); !done) {
      return std::unexpected(done.error());
    }
  }
  report_.moving_ns = MonotonicNs() - start_ns_ - measuring_ns_;
  if (job_.way == FileWay::kStream && offset == job_.size_bytes) {
    const Result<bool> at_end = reader.AtEnd();
    if (!at_end) return std::unexpected(at_end.error());
    if (!*at_end) {
      return Fail(Code::kInvalidArgument,
                  Concat("the stream has more than the ", job_.size_bytes, " bytes of the buffer"),
                  "load into a larger buffer");
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
      return ForEachPiece(job_, lane, [&](const TransferSegment& piece) {
        return lane.FromDevice(job_.address, piece);
      });
    };
    if (auto done = Measure(lane, copy); !done) return std::unexpected(done.error());
    if (auto done = copy(); !done) return std::unexpected(done.error());
  }
  for (size_t i = 0; i < lanes_.size(); ++i, ++turn) {
    if (auto done = Drain(lanes_[turn % lanes_.size()], writer); !done) {
      return std::unexpected(done.error());
    }
  }
  if (auto done = writer.Finish(report_.bytes); !done) return std::unexpected(done.error());
  report_.moving_ns = MonotonicNs() - start_ns_ - measuring_ns_;
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
