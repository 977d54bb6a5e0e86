// What the registry says of one buffer. BufferRecord lies in memory as it lies in the segment;
// EncodeRecord and DecodeRecord add and check the frame around it.
//
// Both validate: the name is a DNS label, the creator is one or empty, states and transports are
// known, sizes are within limits and consistent. Bytes that fail are Code::kCorrupt when decoded
// and Code::kInvalidArgument when encoded.
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
#include "platform/base/name.h"
#include "platform/base/status.h"

namespace gpushm::registry {

// A name in 64 bytes, padded with NUL: compares, hashes and copies as eight words.
class Name {
 public:
  static constexpr size_t kBytes = 64;
  static constexpr size_t kWords = kBytes / 8;
  static_assert(limits::kNameBytes + 1 == kBytes);

  constexpr Name() = default;
  // Cuts at 63 bytes; longer text never equals a valid name, so look before you build one.
  explicit Name(std::string_view text) {
    std::memcpy(bytes_.data(), text.data(), std::min(text.size(), kBytes - 1));
  }

  std::string_view view() const;
  bool empty() const { return bytes_[0] == '\0'; }
  // A DNS label, and nothing but NUL after it.
  bool IsLabel() const;
  std::array<uint64_t, kWords> words() const {
    return std::bit_cast<std::array<uint64_t, kWords>>(bytes_);
  }
  // Word by word, because look-ups compare words that were stored just before: a load that is
  // wider than those stores would wait for them.
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

enum class Transport : uint32_t { kVmm = 1, kCuIpc = 2 };
enum class BufferState : uint32_t { kLoading = 1, kReady = 2, kWriterDied = 3, kFailed = 4 };
std::string_view TransportName(Transport transport);  // "vmm", "cuipc"
std::string_view BufferStateName(BufferState state);  // "loading", "ready", ...

// Flag: no GPU memory, but the page of a signal, barrier or ring (contract/sync/page.h). Its
// transport is kVmm all the same, so that older readers can list it.
inline constexpr uint32_t kRecordPage = 1;
// Flag: once the content is there, loaded_bytes still says how many bytes it has.
inline constexpr uint32_t kRecordContent = 2;

using GpuUuid = std::array<uint8_t, 16>;

struct BufferRecord {
  Name name;
  uint64_t generation = 0;    // Never 0 in a record.
  uint64_t size_bytes = 0;    // As asked for; 1 to limits::kBufferBytes.
  uint64_t mapped_bytes = 0;  // Rounded to the granularity of the allocation; >= size_bytes.
  GpuUuid gpu{};
  Transport transport = Transport::kVmm;
  BufferState state = BufferState::kReady;
  uint32_t flags = 0;  // Of below; readers ignore those they do not know.
  uint32_t reserved = 0;
  uint64_t created_unix_ns = 0;
  uint64_t loaded_bytes = 0;  // So many of size_bytes have their content; see ContentBytes.
  Name creator;               // The container that created or offered it; empty: the pod's spec.

  friend bool operator==(const BufferRecord&, const BufferRecord&) = default;
};
static_assert(std::is_trivially_copyable_v<BufferRecord>);
static_assert(std::has_unique_object_representations_v<BufferRecord>, "no padding: it is copied");
static_assert(sizeof(BufferRecord) == 200 && alignof(BufferRecord) == 8);
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

// The bytes from the start of the buffer that are content: as many as were loaded or as its writer
// said; all of size_bytes where nobody said it.
uint64_t ContentBytes(const BufferRecord& record);

// Words of the record that this version knows; the rest up to the checksum is reserved, zero.
inline constexpr size_t kKnownWords = sizeof(BufferRecord) / 8;
static_assert(kKnownWords + 1 <= kRecordWords);
static_assert(offsetof(BufferRecord, loaded_bytes) / 8 + 2 == kMinRecordWords);

using RecordWords = std::array<uint64_t, kRecordWords>;

// nullptr if the record is one that may stand in a segment; else what is wrong with it.
const char* RecordProblem(const BufferRecord& record);
// The same without a look at the name, for who knows it.
const char* FieldsProblem(const BufferRecord& record);

Result<RecordWords> EncodeRecord(const BufferRecord& record);

// `words` may be fewer or more than kRecordWords (layout.h, rule 2); the last is the checksum.
Result<BufferRecord> DecodeRecord(std::span<const uint64_t> words);
// The same without allocating: nullptr, or what is wrong.
const char* DecodeRecord(std::span<const uint64_t> words, BufferRecord* record);
// The same without a look at the name: the caller compares it with one that it knows.
const char* DecodeFields(std::span<const uint64_t> words, BufferRecord* record);

}  // namespace gpushm::registry
