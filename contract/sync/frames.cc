#include "contract/sync/frames.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "contract/limits.h"
#include "platform/base/clock.h"

namespace gpushm::sync {
namespace {

using MetadataWords = std::array<uint64_t, kMetadataBytes / sizeof(uint64_t)>;

std::unexpected<Status> Wrong(std::string_view what) {
  return Fail(Code::kInvalidArgument, Concat("invalid settings of a ring or queue: ", what),
              "docs/reference/limits.md has the limits");
}

}  // namespace

Result<void> FrameSettings::Check() const {
  if (frames < 2 || frames > limits::kFrames) {
    return Wrong(Concat(frames, " frames: must be 2 to ", limits::kFrames));
  }
  if (frame_bytes == 0) {
    return Fail(Code::kInvalidArgument, "frame_bytes is 0",
                "set frame_bytes to the size of the largest frame");
  }
  if (frame_bytes > limits::kBufferBytes / frames) {
    return Wrong(Concat(frames, " frames of ", frame_bytes, " bytes: may have ",
                        limits::kBufferBytes / frames, " bytes each"));
  }
  if (readers == 0 || readers >= limits::kCells) {
    return Wrong(Concat(readers, " readers: must be 1 to ", limits::kCells - 1));
  }
  if (policy != Policy::kOverwriteOldest && policy != Policy::kBackPressure) {
    return Wrong(Concat("unknown policy ", std::to_underlying(policy),
                        ": must be 0 (overwrite-oldest) or 1 (back-pressure)"));
  }
  return {};
}

std::array<uint64_t, 8> FrameSettings::ToHeader() const {
  return {frames, frame_bytes, readers, std::to_underlying(policy), generation};
}

uint64_t FrameSettings::body_bytes() const { return uint64_t{frames} * sizeof(FrameEntry); }

FrameTable::FrameTable(const Page& page, const FrameSettings& settings)
    : page_(page),
      settings_(settings),
      entries_(reinterpret_cast<FrameEntry*>(page.body().data())) {}

Result<FrameTable> FrameTable::Of(const Page& page, Kind kind) {
  if (page.kind() != kind) {
    return Fail(Code::kInvalidArgument,
                Concat("this is a ", KindName(page.kind()), ", not a ", KindName(kind)));
  }
  const auto& header = page.settings();
  if (header[0] > limits::kFrames || header[2] > limits::kCells) {
    return Wrong(Concat("the sync page says ", header[0], " frames and ", header[2],
                        " readers: at most ", limits::kFrames, " and ", limits::kCells));
  }
  const FrameSettings settings{.frames = static_cast<uint32_t>(header[0]),
                               .frame_bytes = header[1],
                               .readers = static_cast<uint32_t>(header[2]),
                               .policy = static_cast<Policy>(header[3]),
                               .generation = header[4]};
  if (const auto good = settings.Check(); !good) return std::unexpected(good.error());
  if (settings.cells() > page.cells() || settings.body_bytes() > page.body().size()) {
    return Fail(Code::kCorrupt,
                Concat("a sync page is too small for its frames or readers: it has ", page.cells(),
                       " cells and ", page.body().size(), " bytes, but needs ", settings.cells(),
                       " and ", settings.body_bytes()),
                "use the library and the sidecar of the same release");
  }
  return FrameTable(page, settings);
}

uint64_t FrameTable::Newest() const {
  // Sequentially consistent for those who join: see ring.cc. A number above kMaxValue is not valid.
  return std::min(writer().words[kNewestWord].load(std::memory_order_seq_cst), kMaxValue);
}

uint64_t FrameTable::NewestBefore(const Reading& writer) const {
  const uint64_t newest = Newest();
  return writer.ended() ? std::min(newest, writer.value) : newest;
}

std::optional<uint32_t> FrameTable::Find(uint64_t seq) const {
  const uint64_t slot = entry(static_cast<uint32_t>(seq % settings_.frames))
                            .place.load(std::memory_order_acquire);  // Pairs with Publish.
  if (slot >= settings_.frames) return std::nullopt;
  // Sequentially consistent: the second half of a reader's hold (ring.cc).
  const uint64_t there = entry(static_cast<uint32_t>(slot)).seq.load(std::memory_order_seq_cst);
  if (there != seq) return std::nullopt;
  return static_cast<uint32_t>(slot);
}

void FrameTable::Publish(uint32_t slot, uint64_t seq, uint64_t bytes,
                         const Metadata& metadata) const {
  FrameEntry& frame = entry(slot);
  // Each store releases the 0 in `seq` that came before it: a reader that copies a word of the new
  // frame also sees that the old one is gone (Copy).
  frame.bytes.store(bytes, std::memory_order_release);
  frame.time_ns.store(static_cast<uint64_t>(MonotonicNs()), std::memory_order_release);
  const auto words = std::bit_cast<MetadataWords>(metadata);
  for (size_t i = 0; i < words.size(); ++i) {
    frame.metadata[i].store(words[i], std::memory_order_release);
  }
  frame.seq.store(seq, std::memory_order_release);  // Pairs with Find and Copy: all of the above.
  entry(static_cast<uint32_t>(seq % settings_.frames)).place.store(slot, std::memory_order_release);
}

std::optional<Frame> FrameTable::Copy(uint32_t slot, uint64_t seq) const {
  const FrameEntry& from = entry(slot);
  if (from.seq.load(std::memory_order_acquire) != seq) return std::nullopt;
  Frame frame{.slot = slot, .seq = seq};
  // Each is an acquire: if one belongs to a later frame, the load of `seq` below sees the later
  // frame, too.
  frame.bytes = from.bytes.load(std::memory_order_acquire);
  frame.time_ns = static_cast<int64_t>(from.time_ns.load(std::memory_order_acquire));
  MetadataWords words;
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = from.metadata[i].load(std::memory_order_acquire);
  }
  frame.metadata = std::bit_cast<Metadata>(words);
  if (from.seq.load(std::memory_order_relaxed) != seq) return std::nullopt;
  if (frame.bytes > settings_.frame_bytes)
    return std::nullopt;  // Another participant wrote garbage.
  return frame;
}

Result<void> FrameTable::Complete(uint64_t seq) const {
  const Reading reading = Read(writer());
  if (reading.value >= seq) return {};
  if (auto ended = EndedBefore(reading, seq)) return std::unexpected(*ended);
  return Fail(Code::kTimeout, Concat("frame ", seq, " is not complete yet"),
              "wait for the stream that works on it");
}

Result<uint32_t> FrameTable::ClaimReader(uint64_t lease) const {
  for (uint32_t cell = 1; cell < cells(); ++cell) {
    if (Claim(reader(cell), lease, /*again=*/true)) return cell;
  }
  return Fail(Code::kExhausted, Concat("all ", settings_.readers, " readers have already joined"),
              "make the ring or queue with a larger readers setting");
}

Result<void> StillOwned(const Cell& cell, uint64_t lease) {
  // Pairs with the broker's stores in EndCellsOf.
  if (cell.owner.load(std::memory_order_acquire) == lease) return {};
  return Fail(Code::kOrphaned, Concat("lease ", lease, " of this participant has ended"),
              "close it and open it again");
}

Status NoMore(const Reading& writer, uint64_t last) {
  return Status(writer.end(),
                Concat("its writer ", writer.end() == Code::kEnded ? "closed it" : "died",
                       ", and frame ", last, " was the last"),
                "open it again: its next writer makes a new generation");
}

FrameWriter::FrameWriter(const FrameTable& table, uint64_t lease)
    : table_(table), lease_(lease), seqs_(table.settings().frames) {
  for (uint32_t slot = 0; slot < table.settings().frames; ++slot) slots_.push_back(slot);
}

Result<FrameTable> FrameWriter::ClaimWriter(const Page& page, Kind kind, uint64_t lease) {
  const auto table = FrameTable::Of(page, kind);
  if (!table || Claim(table->writer(), lease, /*again=*/false)) return table;
  if (Read(table->writer()).ended()) {
    return Fail(Code::kStale, Concat("the writer of this ", KindName(kind), " has ended"),
                "make a new generation of it");
  }
  return Fail(Code::kAlreadyExists,
              Concat("this ", KindName(kind), " already has a writer, lease ",
                     table->writer().owner.load(std::memory_order_relaxed)),
              "a ring or queue can have only one writer");
}

Result<void> FrameWriter::MayOpen() const {
  if (opened_) {
    return Fail(Code::kInvalidArgument, Concat("frame ", opened_->seq, " is open"),
                "announce or abandon it first");
  }
  return StillOwned(table_.writer(), lease_);
}

FrameWriter::Opened FrameWriter::Open(std::list<uint32_t>::iterator slot) {
  seqs_[*slot] = 0;
  opened_ = Opened{.slot = *slot, .seq = next_seq_};
  slots_.splice(slots_.begin(), slots_, slot);  // If it is abandoned, the next frame takes it.
  return *opened_;
}

Result<void> FrameWriter::MayAnnounce(uint64_t seq, uint64_t bytes, size_t metadata_bytes) const {
  if (!opened_ || opened_->seq != seq) {
    return Fail(Code::kInvalidArgument, Concat("frame ", seq, " is not open"),
                "begin a frame first, and end or abandon it once");
  }
  if (bytes > settings().frame_bytes || metadata_bytes > kMetadataBytes) {
    return Fail(Code::kInvalidArgument,
                Concat(bytes, " bytes and ", metadata_bytes, " of metadata do not fit into ",
                       settings().frame_bytes, " and ", kMetadataBytes),
                "write less, or make the ring or queue with a larger frame_bytes");
  }
  return StillOwned(table_.writer(), lease_);
}

Result<void> FrameWriter::Announce(uint64_t seq, uint64_t bytes,
                                   std::span<const std::byte> metadata) {
  if (const auto may = MayAnnounce(seq, bytes, metadata.size()); !may) return may;
  Metadata copy{};
  if (!metadata.empty()) std::memcpy(copy.data(), metadata.data(), metadata.size());
  const uint32_t slot = opened_->slot;
  table_.Publish(slot, seq, bytes, copy);
  // Workers need this before the number: a writer killed here has not announced the item.
  table_.entry(slot).claim.store(Offer(seq), std::memory_order_release);
  // Pairs with Newest.
  table_.writer().words[kNewestWord].store(seq, std::memory_order_seq_cst);
  WakeSleepers(table_.writer());
  seqs_[slot] = seq;
  slots_.splice(slots_.end(), slots_, slots_.begin());
  ++next_seq_;
  opened_.reset();
  return {};
}

}  // namespace gpushm::sync
