// What the registry says about one buffer. BufferRecord has the same layout in memory as in the
// segment; EncodeRecord and DecodeRecord add and check the frame around it.
//
// Both validate that the name is a DNS label, that the creator is one or empty, that states and
// transports are known, and that sizes are consistent and within limits. Bytes that fail are
// Code::kCorrupt when decoded and Code::kInvalidArgument when encoded.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

#include "contract/limits.h"
#include "contract/registry/layout.h"
#include "contract/types.h"
#include "platform/base/digest.h"
#include "platform/base/name.h"
#include "platform/base/status.h"

namespace gpushm::registry {

using gpushm::BufferState;
using gpushm::Transport;

// A name in 64 bytes, padded with NUL: compares, hashes and copies as eight words.
class Name {
 public:
  static constexpr size_t kBytes = 64;
  static constexpr size_t kWords = kBytes / 8;
  static_assert(limits::kNameBytes + 1 == kBytes);

  constexpr Name() = default;
  // Cuts at 63 bytes. Longer text never equals a valid name, so callers check the length first.
  explicit Name(std::string_view text) {
    std::memcpy(bytes_.data(), text.data(), std::min(text.size(), kBytes - 1));
  }

  std::string_view view() const;
  bool empty() const { return bytes_[0] == '\0'; }
  // Whether it is a DNS label followed by NUL only.
  bool IsLabel() const;
  std::array<uint64_t, kWords> words() const {
    return std::bit_cast<std::array<uint64_t, kWords>>(bytes_);
  }
  // Compares word by word, because look-ups compare words that were stored just before: a load that
  // is wider than those stores would wait for them.
  friend bool operator==(const Name& a, const Name& b) {
    for (size_t i = 0; i < kWords; ++i) {
      if (a.word(i) != b.word(i)) return false;
    }
    return true;
  }

 private:
  uint64_t word(size_t i) const {
    uint64_t word = 0;
    std::memcpy(&word, &bytes_[8 * i], sizeof word);
    return word;
  }

  alignas(8) std::array<char, kBytes> bytes_{};
};

std::string_view TransportName(Transport transport);  // "vmm", "cuipc", "host", "blocks"
std::string_view BufferStateName(BufferState state);  // "loading", "ready", ...

// Flag: not GPU memory, but the sync page of a signal, barrier or ring (contract/sync/page.h). Its
// transport is kVmm nevertheless.
inline constexpr uint32_t kRecordPage = 1;
// Flag: once the content is loaded, loaded_bytes still says how many bytes it has.
inline constexpr uint32_t kRecordContent = 2;
// Nobody may map it writable: the broker alone fills it.
inline constexpr uint32_t kRecordReadOnly = 4;
// Bits 8 to 15 of the flags: the Code of the reason why the buffer has no content (reader.h,
// ReasonOf). 0: there is none.
inline constexpr uint32_t kRecordReasonShift = 8;
inline constexpr uint32_t kRecordReasonMask = 0xff << kRecordReasonShift;

using GpuUuid = std::array<uint8_t, 16>;

struct BufferRecord {
  Name name;
  uint64_t generation = 0;    // Never 0 in a record.
  uint64_t size_bytes = 0;    // As requested; 1 to limits::kBufferBytes.
  uint64_t mapped_bytes = 0;  // Rounded to the granularity of the allocation; >= size_bytes.
  GpuUuid gpu{};
  Transport transport = Transport::kVmm;  // Or kCuIpc.
  BufferState state = BufferState::kReady;
  uint32_t flags = 0;       // The flags above; readers ignore unknown ones.
  uint32_t gpu_number = 0;  // Of `gpu` among the pod's GPUs.
  uint64_t created_unix_ns = 0;
  uint64_t loaded_bytes = 0;  // Bytes of size_bytes that have their content; see ContentBytes.
  Name creator;               // Container that created or offered it; empty: declared by the pod.
  uint64_t description_bytes = 0;  // Of the description of this generation; 0: it has none.
  // Of its content (docs/design/digest.md), if it is known.
  Digest digest{};

  friend bool operator==(const BufferRecord&, const BufferRecord&) = default;
};
static_assert(std::is_trivially_copyable_v<BufferRecord>);
static_assert(std::has_unique_object_representations_v<BufferRecord>,
              "no padding, because it is copied");
static_assert(sizeof(BufferRecord) == 224 && alignof(BufferRecord) == 8);
static_assert(offsetof(BufferRecord, name) == 0);
static_assert(offsetof(BufferRecord, generation) == 64);
static_assert(offsetof(BufferRecord, size_bytes) == 72);
static_assert(offsetof(BufferRecord, mapped_bytes) == 80);
static_assert(offsetof(BufferRecord, gpu) == 88);
static_assert(offsetof(BufferRecord, transport) == 104);
static_assert(offsetof(BufferRecord, state) == 108);
static_assert(offsetof(BufferRecord, flags) == 112);
static_assert(offsetof(BufferRecord, created_unix_ns) == 120);
static_assert(offsetof(BufferRecord, loaded_bytes) == 128);
static_assert(offsetof(BufferRecord, creator) == 136);
static_assert(offsetof(BufferRecord, description_bytes) == 200);
static_assert(offsetof(BufferRecord, digest) == 208);

// Number of bytes, from the start of the buffer, that are content: the bytes that were loaded or
// that the writer gave; all of size_bytes if nobody gave a number.
uint64_t ContentBytes(const BufferRecord& record);

// 0 if it has no reason.
inline uint32_t ReasonCode(const BufferRecord& record) {
  return (record.flags & kRecordReasonMask) >> kRecordReasonShift;
}

using ReasonWords = std::array<uint64_t, kReasonWords>;
static_assert(sizeof(ReasonWords) == limits::kReasonBytes + 1);
// Whether it is the text of a reason: one line of 1 to limits::kReasonBytes bytes.
bool IsReason(std::string_view text);

// Words of the record that this version knows; the others before the checksum are reserved and
// zero.
inline constexpr size_t kKnownWords = sizeof(BufferRecord) / 8;
static_assert(kKnownWords + 1 <= kRecordWords);
static_assert(offsetof(BufferRecord, loaded_bytes) / 8 + 2 == kMinRecordWords);

using RecordWords = std::array<uint64_t, kRecordWords>;

// nullptr if the record is valid in a segment; otherwise the reason why not.
const char* RecordProblem(const BufferRecord& record);
// The same without the name, for callers that know it.
const char* FieldsProblem(const BufferRecord& record);

Result<RecordWords> EncodeRecord(const BufferRecord& record);

// `words` may be fewer or more than kRecordWords (layout.h, rule 2); the last one is the checksum.
Result<BufferRecord> DecodeRecord(std::span<const uint64_t> words);
// The same without allocating: returns nullptr, or the reason.
const char* DecodeRecord(std::span<const uint64_t> words, BufferRecord* record);
// The same without the name: the caller compares it with one that it knows.
const char* DecodeFields(std::span<const uint64_t> words, BufferRecord* record);

}  // namespace gpushm::registry
