#include "runtime/registry/record.h"

#include <algorithm>
#include <cstring>

#include "runtime/registry/checksum.h"

namespace gpushm::registry {

std::string_view Name::view() const {
  return std::string_view(bytes_.data(), strnlen(bytes_.data(), kBytes));
}

bool Name::IsLabel() const {
  const std::string_view text = view();
  return IsDnsLabel(text) && std::all_of(bytes_.begin() + static_cast<ptrdiff_t>(text.size()),
                                         bytes_.end(), [](char c) { return c == '\0'; });
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
  *record = BufferRecord();
  std::memcpy(static_cast<void*>(record), content.data(),
              std::min(content.size_bytes(), sizeof *record));
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
