#include "contract/registry/writer.h"

#include <cstring>
#include <utility>

#include "platform/base/quote.h"

namespace gpushm::registry {
namespace {

std::unexpected<Status> NotLive(uint32_t slot) {
  return Fail(Code::kNotFound, Concat("slot ", slot, " of the registry has no buffer"));
}

Result<RecordWords> Encode(const BufferRecord& record, std::string_view reason) {
  const bool fits = ReasonCode(record) == 0 ? reason.empty() : IsReason(reason);
  if (fits) return EncodeRecord(record);
  return Fail(Code::kInvalidArgument,
              Concat("buffer \"", record.name.view(), "\" cannot be published: its reason is ",
                     Quote(reason), " with code ", ReasonCode(record)));
}

}  // namespace

Result<RegistryWriter> RegistryWriter::Create(uint32_t slot_count, uint64_t generation_floor) {
  Result<HeaderConstants> constants = NewHeaderConstants(slot_count, generation_floor);
  if (!constants) return std::unexpected(constants.error());
  Result<WritableSegment> segment = MakeSealedSegment(SegmentBytes(*constants));
  if (!segment) return std::unexpected(segment.error());
  return RegistryWriter(std::move(*segment), *constants);
}

RegistryWriter::RegistryWriter(WritableSegment segment, const HeaderConstants& constants)
    : segment_(std::move(segment)),
      writer_(segment_.mapping.address(), constants),
      names_(constants.slot_count) {
  free_.reserve(constants.slot_count);
  for (uint32_t slot = constants.slot_count; slot > 0; --slot) free_.push_back(slot - 1);
}

void RegistryWriter::Publish(uint32_t slot, const RecordWords& record, std::string_view reason) {
  if (reason.empty()) {
    writer_.Publish(slot, record.data());
    return;
  }
  ReasonWords words{};
  std::memcpy(words.data(), reason.data(), reason.size());
  writer_.Publish(slot, record.data(), words.data());
}

Result<uint32_t> RegistryWriter::Insert(const BufferRecord& record, std::string_view reason) {
  const Result<RecordWords> words = Encode(record, reason);
  if (!words) return std::unexpected(words.error());
  if (slots_.contains(std::string(record.name.view()))) {
    return Fail(Code::kAlreadyExists, Concat("buffer \"", record.name.view(), "\" already exists"));
  }
  if (free_.empty()) {
    return Fail(Code::kExhausted,
                Concat("all ", slot_count(), " slots of the registry are in use (limit kBuffers)"),
                "delete unused buffers");
  }
  const uint32_t slot = free_.back();
  free_.pop_back();
  names_[slot] = record.name;
  slots_.emplace(record.name.view(), slot);
  Publish(slot, *words, reason);
  return slot;
}

Result<void> RegistryWriter::Update(uint32_t slot, const BufferRecord& record,
                                    std::string_view reason) {
  if (!IsLive(slot)) return NotLive(slot);
  if (names_[slot] != record.name) {
    return Fail(Code::kInvalidArgument, Concat("slot ", slot, " has buffer \"", names_[slot].view(),
                                               "\", not \"", record.name.view(), "\""));
  }
  const Result<RecordWords> words = Encode(record, reason);
  if (!words) return std::unexpected(words.error());
  Publish(slot, *words, reason);
  return {};
}

Result<void> RegistryWriter::Withdraw(uint32_t slot) {
  if (!IsLive(slot)) return NotLive(slot);
  writer_.Withdraw(slot);
  slots_.erase(std::string(names_[slot].view()));
  names_[slot] = Name();
  free_.push_back(slot);
  return {};
}

}  // namespace gpushm::registry
