#include "runtime/registry/record.h"

#include <algorithm>
#include <cstring>

#include "runtime/registry/checksum.h"

namespace gpushm::registry {
namespace {

constexpr bool IsAlphanumeric(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

// Without branches, so that the compiler makes vector code of loops over it: this runs in look-ups.
constexpr unsigned IsLabelByte(uint8_t c) {
  return static_cast<unsigned>(static_cast<uint8_t>(c - 'a') < 26) |
         static_cast<unsigned>(static_cast<uint8_t>(c - '0') < 10) |
         static_cast<unsigned>(c == '-');
}

}  // namespace

bool IsDnsLabel(std::string_view text) {
  if (text.empty() || text.size() > limits::kNameBytes) return false;
  const bool bytes_fit =
      std::ranges::all_of(text, [](char c) { return IsAlphanumeric(c) || c == '-'; });
  return bytes_fit && IsAlphanumeric(text.front()) && IsAlphanumeric(text.back());
}

Name::Name(std::string_view text) {
  std::memcpy(bytes_.data(), text.data(), std::min(text.size(), kBytes - 1));
}

std::string_view Name::view() const {
  return std::string_view(bytes_.data(), strnlen(bytes_.data(), kBytes));
}

std::array<uint64_t, Name::kWords> Name::words() const {
  std::array<uint64_t, kWords> words;
  std::memcpy(words.data(), bytes_.data(), kBytes);
  return words;
}

bool Name::IsLabel() const {
  const size_t length = strnlen(bytes_.data(), kBytes);
  if (length == 0 || length == kBytes) return false;
  uint8_t label_bytes = 0;
  uint8_t nul_bytes = 0;
  for (const char c : bytes_) {
    const auto byte = static_cast<uint8_t>(c);
    label_bytes = static_cast<uint8_t>(label_bytes + IsLabelByte(byte));
    nul_bytes = static_cast<uint8_t>(nul_bytes + (byte == 0));
  }
  return label_bytes == length && nul_bytes == kBytes - length && bytes_[0] != '-' &&
         bytes_[length - 1] != '-';
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
  if (record.creator != Name() && !record.creator.IsLabel()) {
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
  if (words.size() < kMinRecordWords) return "it is too short";
  const std::span<const uint64_t> content = words.first(words.size() - 1);
  if (Checksum(content) != words.back()) return "its checksum does not fit";
  if (content.size() >= kKnownWords) {
    std::memcpy(static_cast<void*>(record), content.data(), sizeof(*record));
  } else {
    *record = BufferRecord();
    std::memcpy(static_cast<void*>(record), content.data(), content.size_bytes());
  }
  return RecordProblem(*record);
}

Result<BufferRecord> DecodeRecord(std::span<const uint64_t> words) {
  Result<BufferRecord> record(std::in_place);
  if (const char* problem = DecodeRecord(words, &*record)) {
    return Fail(Code::kCorrupt, Concat("a record is broken: ", problem));
  }
  return record;
}

}  // namespace gpushm::registry
