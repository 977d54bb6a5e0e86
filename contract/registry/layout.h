// The bytes of a registry segment, which broker, library and plugin share in every combination of
// their versions. Little-endian, 64-bit, fixed width; offsets and indices, never pointers.
//
//   0            SegmentHeader, header_size bytes (4 KiB in layout 1)
//   header_size  slot 0, slot 1 ... slot_count-1, slot_stride bytes each (slot.h)
//   behind them  the reasons of slot 0, slot 1 ... slot_count-1, kReasonsStride bytes each, if
//                kIncompatReasons is set
//
// Rules of change
//   (1) Nothing here moves or changes its meaning while the incompatible flags stay 0. A new field
//       of a record is added just before its checksum, and record_words grows. A new field of the
//       header takes reserved bytes that were zero.
//   (2) A reader uses header_size, slot_stride and record_words of the header. It reads the words
//       that it knows, takes those that an older writer lacks as zero, and ignores unknown ones. So
//       it accepts every layout_version whose incompatible flags it knows.
//   (3) A change that an older reader would misinterpret (a new transport, a new state) sets a bit
//       of incompat_flags.
//   (4) A segment is never resized and never repaired: a new broker makes a new one.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace gpushm::registry {

inline constexpr uint64_t kMagic = 0x3147455248535047;  // "GPSHREG1", read as little-endian
inline constexpr uint32_t kLayoutVersion = 1;
// Of incompat_flags: the slots have reasons.
inline constexpr uint32_t kIncompatReasons = 1;
inline constexpr uint32_t kKnownIncompatFlags = kIncompatReasons;

inline constexpr uint32_t kHeaderSize = 4096;
inline constexpr uint32_t kRecordWords = 32;
inline constexpr uint32_t kChangeLogEntries = 512;

// Bounds that a reader accepts. The smallest record ends with loaded_bytes and its checksum.
inline constexpr uint32_t kMinRecordWords = 18;
inline constexpr uint32_t kMaxRecordWords = 64;
inline constexpr uint32_t kMaxHeaderSize = 65536;
inline constexpr uint32_t kMaxSlotStride = 4096;
inline constexpr uint32_t kMaxSlots = 65536;

// Values of SegmentHeader::state.
inline constexpr uint32_t kStateReady = 1;
inline constexpr uint32_t kStateRetired = 2;  // Shut down in good order; connect again.
inline constexpr uint32_t kNoSlot = 0xffffffff;

// Written once, before any other process gets the segment.
struct HeaderConstants {
  uint64_t magic;
  uint32_t layout_version;
  uint32_t header_size;  // A multiple of 64.
  uint32_t slot_stride;  // A multiple of 64.
  uint32_t record_words;
  uint32_t slot_count;
  uint32_t incompat_flags;
  uint32_t compat_flags;
  uint32_t change_log_entries;         // A power of two, or 0: no log, readers scan all slots.
  std::array<uint64_t, 2> segment_id;  // Random.
  uint64_t created_unix_ns;
  uint64_t generation_floor;  // Generations of this broker are above it.
  uint64_t checksum;          // Of the words before it.
};
static_assert(sizeof(HeaderConstants) == 80 && offsetof(HeaderConstants, segment_id) == 40 &&
              offsetof(HeaderConstants, checksum) == 72);

// The changing fields have cache lines of their own: state is read with every use of an attachment,
// and table_version changes with every commit.
struct SegmentHeader {
  HeaderConstants constants;
  alignas(64) std::atomic<uint32_t> state;
  // Bit i: the pod's GPU number i is unhealthy.
  std::atomic<uint32_t> device_lost;
  std::atomic<uint32_t> gpus;  // Number of the pod's GPUs.
  // Grows by one after each change of a slot, of state or of device_lost. Written with release.
  alignas(64) std::atomic<uint64_t> table_version;
  // Changes after table_version; waiters sleep on it (FUTEX_WAIT, not private).
  std::atomic<uint32_t> wake_word;
  // Entry v % change_log_entries: the slot whose change led to table_version v. This is a hint that
  // spares readers the scan of all slots. It is valid while fewer than change_log_entries changes
  // follow.
  alignas(2048) std::array<std::atomic<uint32_t>, kChangeLogEntries> change_log;
};
static_assert(sizeof(SegmentHeader) == kHeaderSize);
static_assert(offsetof(SegmentHeader, state) == 128);
static_assert(offsetof(SegmentHeader, device_lost) == 132);
static_assert(offsetof(SegmentHeader, gpus) == 136);
static_assert(offsetof(SegmentHeader, table_version) == 192);
static_assert(offsetof(SegmentHeader, wake_word) == 200);
static_assert(offsetof(SegmentHeader, change_log) == 2048);
static_assert(std::has_single_bit(kChangeLogEntries));

static_assert(std::endian::native == std::endian::little && sizeof(void*) == 8);
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint64_t>) == 8);
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);

// Layout of a slot: the version alone in its cache line, then two copies of the record.
inline constexpr uint32_t kSlotCopiesOffset = 64;
constexpr uint32_t SlotStride(uint32_t record_words) {
  return (kSlotCopiesOffset + 2 * 8 * record_words + 63) / 64 * 64;
}
static_assert(SlotStride(kRecordWords) == 576);
static_assert(SlotStride(kMaxRecordWords) <= kMaxSlotStride);

// Two copies of the reason why the buffer of a slot has no content: text, padded with NUL. The
// slot's version selects one of them, too. It is valid if that version's record says that there is
// one. They lie apart from the slots, so that these stay dense: with the reasons between them, a
// look-up of a random name took 92 ns, not 80.
inline constexpr uint32_t kReasonWords = 32;
inline constexpr uint32_t kReasonsStride = 2 * 8 * kReasonWords;

constexpr uint64_t SegmentBytes(const HeaderConstants& constants) {
  const bool reasons = (constants.incompat_flags & kIncompatReasons) != 0;
  return constants.header_size +
         uint64_t{constants.slot_count} * (constants.slot_stride + (reasons ? kReasonsStride : 0));
}

}  // namespace gpushm::registry
