#include "contract/registry/segment.h"

#include <sys/random.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <span>

#include "contract/registry/checksum.h"
#include "platform/base/clock.h"

namespace gpushm::registry {
namespace {

constexpr char kForeignSegment[] =
    "check that the socket belongs to a gpushm broker and that its version is compatible";
constexpr char kBrokenHeader[] = "restart the pod and report this as a bug";

// Empty if there is none.
std::string HeaderProblem(const HeaderConstants& header, uint64_t bytes) {
  if (header.header_size < kHeaderSize || header.header_size > kMaxHeaderSize ||
      header.header_size % 64 != 0) {
    return Concat("header_size is ", header.header_size, ", must be a multiple of 64 from ",
                  kHeaderSize, " to ", kMaxHeaderSize);
  }
  if (header.record_words < kMinRecordWords || header.record_words > kMaxRecordWords) {
    return Concat("record_words is ", header.record_words, ", must be ", kMinRecordWords, " to ",
                  kMaxRecordWords);
  }
  if (header.slot_stride < SlotStride(header.record_words) || header.slot_stride > kMaxSlotStride ||
      header.slot_stride % 64 != 0) {
    return Concat("slot_stride is ", header.slot_stride, ", must be a multiple of 64 from ",
                  SlotStride(header.record_words), " (for record_words ", header.record_words,
                  ") to ", kMaxSlotStride);
  }
  if (header.slot_count == 0 || header.slot_count > kMaxSlots) {
    return Concat("slot_count is ", header.slot_count, ", must be 1 to ", kMaxSlots);
  }
  const uint64_t log_fits =
      (header.header_size - offsetof(SegmentHeader, change_log)) / sizeof(uint32_t);
  if (header.change_log_entries != 0 &&
      (!std::has_single_bit(header.change_log_entries) || header.change_log_entries > log_fits)) {
    return Concat("change_log_entries is ", header.change_log_entries,
                  ", must be 0 or a power of two of at most ", log_fits, " (for header_size ",
                  header.header_size, ")");
  }
  if (const uint64_t expected = SegmentBytes(header); expected != bytes) {
    return Concat("its file has ", bytes, " bytes instead of ", expected);
  }
  return {};
}

}  // namespace

Result<WritableSegment> MakeSealedSegment(uint64_t bytes) {
  return MakeSealed("registry", bytes, Writers::kMaker);
}

Result<Mapping> MapSealedSegment(const UniqueFd& fd) {
  constexpr uint64_t kMaxBytes =
      kMaxHeaderSize + uint64_t{kMaxSlotStride + kReasonsStride} * kMaxSlots;
  return MapSealed(fd, "registry", kHeaderSize, kMaxBytes, Writers::kMaker);
}

Result<HeaderConstants> NewHeaderConstants(uint32_t slot_count, uint64_t generation_floor) {
  if (slot_count == 0 || slot_count > kMaxSlots) {
    return Fail(Code::kInvalidArgument, Concat("invalid registry size ", slot_count,
                                               ": must be 1 to ", kMaxSlots, " slots"));
  }
  HeaderConstants constants{
      .magic = kMagic,
      .layout_version = kLayoutVersion,
      .header_size = kHeaderSize,
      .slot_stride = SlotStride(kRecordWords),
      .record_words = kRecordWords,
      .slot_count = slot_count,
      .incompat_flags = kIncompatReasons,
      .compat_flags = 0,
      .change_log_entries = kChangeLogEntries,
      .segment_id = {},
      .created_unix_ns = static_cast<uint64_t>(UnixNs()),
      .generation_floor = generation_floor,
      .checksum = 0,
  };
  if (getrandom(constants.segment_id.data(), sizeof(constants.segment_id), 0) !=
      ssize_t{sizeof(constants.segment_id)}) {
    return FailSystem(errno, "getrandom for the registry's id");
  }
  return constants;
}

Result<HeaderConstants> ValidateHeader(const void* address, uint64_t bytes) {
  if (bytes < kHeaderSize) {
    return Fail(
        Code::kCorrupt,
        Concat("the registry has ", bytes, " bytes, but its header alone has ", kHeaderSize),
        kForeignSegment);
  }
  HeaderConstants header;
  std::memcpy(&header, address, sizeof(header));
  if (header.magic != kMagic) {
    return Fail(Code::kCorrupt,
                Concat("not a gpushm registry: bad magic number 0x", std::hex, header.magic,
                       ", must be 0x", kMagic),
                kForeignSegment);
  }
  if ((header.incompat_flags & ~kKnownIncompatFlags) != 0) {
    return Fail(Code::kIncompatible,
                Concat("the registry has layout ", header.layout_version, " with features 0x",
                       std::hex, header.incompat_flags, " that this version does not support"),
                "restart the container, so that it gets the library of the node's gpushm");
  }
  std::array<uint64_t, sizeof(HeaderConstants) / 8> words;
  std::memcpy(words.data(), &header, sizeof(header));
  const uint64_t checksum = Checksum(std::span(words).first(words.size() - 1));
  if (checksum != header.checksum) {
    return Fail(Code::kCorrupt,
                Concat("the checksum of the registry's header is 0x", std::hex, checksum,
                       ", but the header says 0x", header.checksum),
                kBrokenHeader);
  }
  if (const std::string problem = HeaderProblem(header, bytes); !problem.empty()) {
    return Fail(Code::kCorrupt, Concat("the registry's header contradicts itself: ", problem),
                kBrokenHeader);
  }
  return header;
}

}  // namespace gpushm::registry
