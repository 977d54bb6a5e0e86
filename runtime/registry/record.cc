#include "runtime/registry/record.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/registry/checksum.h"

namespace gpushm::registry {
namespace {

constexpr bool IsAlphanumeric(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

// Eight bytes at a time, because this runs in every look-up.
constexpr uint64_t kEach = 0x0101010101010101;
constexpr uint64_t kHighBits = 0x80 * kEach;

// The high bit of each byte that lies in [low, high]; bytes below 0x80 only.
constexpr uint64_t InRange(uint64_t bytes, uint8_t low, uint8_t high) {
  return (bytes + kEach * (0x80u - low)) & ~(bytes + kEach * (0x7fu - high)) & kHighBits;
}
constexpr uint64_t AreLabelBytes(uint64_t bytes) {
  return InRange(bytes, 'a', 'z') | InRange(bytes, '0', '9') | InRange(bytes, '-', '-');
}
static_assert(AreLabelBytes(0x00'7b'60'3a'2f'7a'61'2d) == 0x00'00'00'00'00'80'80'80);

}  // namespace

bool IsDnsLabel(std::string_view text) {
  if (text.empty() || text.size() > limits::kNameBytes) return false;
  const bool bytes_fit =
      std::ranges::all_of(text, [](char c) { return IsAlphanumeric(c) || c == '-'; });
  return bytes_fit && IsAlphanumeric(text.front()) && IsAlphanumeric(text.back());
}

std::string_view Name::view() const {
  return std::string_view(bytes_.data(), strnlen(bytes_.data(), kBytes));
}

bool Name::IsLabel() const {
  const std::array<uint64_t, kWords> all = words();
  size_t length = 0;
  bool ended = false;
  for (const uint64_t word : all) {
    if (ended) {
      if (word != 0) return false;
      continue;
    }
    if ((word & kHighBits) != 0) return false;
    const uint64_t fit = AreLabelBytes(word);
    const auto in_word = static_cast<size_t>(std::countr_one(fit | (kHighBits - kEach))) / 8;
    length += in_word;
    ended = in_word < 8;
    if (ended && word >> (8 * in_word) != 0) return false;  // Only NUL after the label.
  }
  return ended && length != 0 && bytes_[0] != '-' && bytes_[length - 1] != '-';
}

std::string_view TransportName(Transport transport) {
  switch (transport) {
    case Transport::kVmm:
      return "vmm";
    case Transport::kCuIpc:
      return "cuipc";
  }
  return "unknown";
}

std::string_view BufferStateName(BufferState state) {
  switch (state) {
    case BufferState::kLoading:
      return "loading";
    case BufferState::kReady:
      return "ready";
    case BufferState::kWriterDied:
      return "writer-died";
    case BufferState::kFailed:
      return "failed";
  }
  return "unknown";
}

const char* RecordProblem(const BufferRecord& record) {
  if (!record.name.IsLabel()) return "its name is not a DNS label";
  return FieldsProblem(record);
}

const char* FieldsProblem(const BufferRecord& record) {
  if (record.generation == 0) return "its generation is 0";
  if (record.size_bytes == 0) return "its size is 0";
  if (record.mapped_bytes > limits::kBufferBytes) return "it is larger than limits::kBufferBytes";
  if (record.size_bytes > record.mapped_bytes) return "it is larger than its mapping";
  if (record.loaded_bytes > record.mapped_bytes) return "more than all of it is loaded";
  if (record.transport != Transport::kVmm && record.transport != Transport::kCuIpc) {
    return "its transport is unknown";
  }
  if (record.state < BufferState::kLoading || record.state > BufferState::kFailed) {
    return "its state is unknown";
  }
  if (!record.creator.empty() ? !record.creator.IsLabel() : record.creator != Name()) {
    return "its creator is neither empty nor a DNS label";
  }
  return nullptr;
}

Result<RecordWords> EncodeRecord(const BufferRecord& record) {
  if (const char* problem = RecordProblem(record)) {
    return Fail(Code::kInvalidArgument,
                Concat("buffer \"", record.name.view(), "\" cannot be published: ", problem));
  }
  RecordWords words{};
  std::memcpy(words.data(), &record, sizeof(record));
  words.back() = Checksum(std::span(words).first(kRecordWords - 1));
  return words;
}

const char* DecodeRecord(std::span<const uint64_t> words, BufferRecord* record) {
  if (const char* problem = DecodeFields(words, record)) return problem;
  return record->name.IsLabel() ? nullptr : "its name is not a DNS label";
}

const char* DecodeFields(std::span<const uint64_t> words, BufferRecord* record) {
  constexpr size_t kContent = kRecordWords - 1;
  if (words.size() < kMinRecordWords) return "it is too short";
  const std::span<const uint64_t> content = words.first(words.size() - 1);
  const uint64_t checksum =
      content.size() == kContent ? Checksum(content.first<kContent>()) : Checksum(content);
  if (checksum != words.back()) return "its checksum does not fit";
  CopyFields(words, record);
  return FieldsProblem(*record);
}

Result<BufferRecord> DecodeRecord(std::span<const uint64_t> words) {
  Result<BufferRecord> record(std::in_place);
  if (const char* problem = DecodeRecord(words, &*record)) {
    return Fail(Code::kCorrupt, Concat("a record is broken: ", problem));
  }
  return record;
}

}  // namespace gpushm::registry
