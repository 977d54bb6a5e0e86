#include "contract/registry/record.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "contract/limits.h"
#include "contract/registry/checksum.h"
#include "platform/base/quote.h"
#include "platform/base/utf8.h"

namespace gpushm::registry {
namespace {

// A name that may come from a hostile pod: all bytes before the padding.
std::string Quoted(const Name& name) {
  const auto bytes = std::bit_cast<std::array<char, Name::kBytes>>(name);
  const std::string_view text(bytes.data(), bytes.size());
  return Quote(text.substr(0, text.find_last_not_of('\0') + 1));
}

// The values of a record, for the texts of errors: a problem alone does not show the value.
std::string Values(const BufferRecord& record) {
  return Concat("generation ", record.generation, ", size ", record.size_bytes, ", mapping ",
                record.mapped_bytes, ", loaded ", record.loaded_bytes, ", description ",
                record.description_bytes, ", transport ", record.transport, ", state ",
                record.state, ", creator ", Quoted(record.creator));
}

// The usual size is a constant, because look-ups compute it.
uint64_t ChecksumOf(std::span<const uint64_t> content) {
  constexpr size_t kContent = kRecordWords - 1;
  return content.size() == kContent ? Checksum(content.first<kContent>()) : Checksum(content);
}

// The same of words that may be no record.
std::string Values(std::span<const uint64_t> words) {
  if (words.size() < kMinRecordWords) {
    return Concat(words.size(), " words, at least ", kMinRecordWords);
  }
  const std::span<const uint64_t> content = words.first(words.size() - 1);
  BufferRecord record;
  std::memcpy(static_cast<void*>(&record), content.data(),
              std::min(content.size_bytes(), sizeof record));
  return Concat("name ", Quoted(record.name), ", ", Values(record), ", checksum 0x", std::hex,
                words.back(), ", computed 0x", ChecksumOf(content));
}

}  // namespace

std::string_view Name::view() const {
  return std::string_view(bytes_.data(), strnlen(bytes_.data(), kBytes));
}

// The same rule as IsDnsLabel, eight characters at a time, because every look-up checks the name
// that it returns. In the masks below, the high bit of a byte describes the byte at that place.
bool Name::IsLabel() const {
  constexpr uint64_t kOnes = 0x0101010101010101;
  constexpr uint64_t kHighs = 0x80 * kOnes;
  constexpr uint64_t kFirst = 0x80;
  const auto at_least = [](uint64_t word, uint64_t least) {  // For bytes below 0x80.
    return (word + (0x80 - least) * kOnes) & kHighs;
  };
  const auto between = [&](uint64_t word, uint64_t first, uint64_t last) {
    return at_least(word, first) & ~at_least(word, last + 1);
  };
  // State of the byte before the word. The first word starts as if after a used byte that is no
  // '-'.
  uint64_t last_used = kFirst;
  uint64_t last_dash = kFirst;
  for (size_t i = 0; i < kWords; ++i) {
    const uint64_t text = word(i);
    const uint64_t used = at_least(text, 1);
    const uint64_t dash = between(text, '-', '-');
    const uint64_t allowed = dash | between(text, '0', '9') | between(text, 'a', 'z');
    const uint64_t used_before = used << 8 | last_used;
    const uint64_t dash_before = dash << 8 | last_dash;
    const uint64_t wrong =
        (text & kHighs) | (used & ~(allowed & used_before)) | (dash_before & ~used);
    if (wrong != 0 || (i == 0 && (dash & kFirst) != 0)) return false;
    last_used = used >> 56;
    last_dash = dash >> 56;
    if (last_used == 0) {  // Only NUL may follow.
      uint64_t rest = 0;
      while (++i < kWords) rest |= word(i);
      return rest == 0;
    }
  }
  return false;  // It has no NUL at its end.
}

std::string_view TransportName(Transport transport) {
  switch (transport) {
    case Transport::kVmm:
      return "vmm";
    case Transport::kCuIpc:
      return "cuipc";
    case Transport::kHost:
      return "host";
    case Transport::kBlocks:
      return "blocks";
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

uint64_t ContentBytes(const BufferRecord& record) {
  const bool there =
      record.state == BufferState::kReady || record.state == BufferState::kWriterDied;
  const bool said = (record.flags & kRecordContent) != 0;
  return there && !said ? record.size_bytes : std::min(record.loaded_bytes, record.size_bytes);
}

bool IsReason(std::string_view text) {
  return !text.empty() && text.size() <= limits::kReasonBytes && IsLine(text);
}

const char* RecordProblem(const BufferRecord& record) {
  if (!record.name.IsLabel()) return "its name is not a DNS label";
  return FieldsProblem(record);
}

const char* FieldsProblem(const BufferRecord& record) {
  if (record.generation == 0) return "its generation is 0";
  if (record.size_bytes == 0) return "its size is 0";
  if (record.mapped_bytes > limits::kBufferBytes) {
    static_assert(limits::kBufferBytes == uint64_t{1} << 46);
    return "its mapping is larger than 2^46 bytes (limit kBufferBytes)";
  }
  if (record.size_bytes > record.mapped_bytes) return "its size is larger than its mapping";
  if (record.loaded_bytes > record.mapped_bytes) return "its loaded_bytes exceed its mapping";
  if (record.description_bytes > limits::kDescriptionBytes) {
    static_assert(limits::kDescriptionBytes == uint64_t{64} << 20);
    return "its description is larger than 64 MiB (limit kDescriptionBytes)";
  }
  if (record.transport != Transport::kVmm && record.transport != Transport::kCuIpc) {
    return "its transport is neither 1 (vmm) nor 2 (cuipc)";
  }
  if (record.state < BufferState::kLoading || record.state > BufferState::kFailed) {
    return "its state is not 1 to 4";
  }
  if (!record.creator.empty() ? !record.creator.IsLabel() : record.creator != Name()) {
    return "its creator is neither empty nor a DNS label";
  }
  return nullptr;
}

Result<RecordWords> EncodeRecord(const BufferRecord& record) {
  if (const char* problem = RecordProblem(record)) {
    return Fail(Code::kInvalidArgument,
                Concat("buffer ", Quoted(record.name), " cannot be published: ", problem, " (",
                       Values(record), ")"));
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
  if (words.size() < kMinRecordWords) return "it has too few words";
  const std::span<const uint64_t> content = words.first(words.size() - 1);
  if (ChecksumOf(content) != words.back()) return "its checksum is wrong";
  *record = BufferRecord();
  std::memcpy(static_cast<void*>(record), content.data(),
              std::min(content.size_bytes(), sizeof *record));
  return FieldsProblem(*record);
}

Result<BufferRecord> DecodeRecord(std::span<const uint64_t> words) {
  Result<BufferRecord> record(std::in_place);
  if (const char* problem = DecodeRecord(words, &*record)) {
    return Fail(Code::kCorrupt, Concat("a record is broken: ", problem, " (", Values(words), ")"),
                "restart the pod that made it and report this as a bug");
  }
  return record;
}

}  // namespace gpushm::registry
