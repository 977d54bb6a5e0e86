#include "contract/tensors/table.h"

#include <algorithm>
#include <cstring>

#include "contract/limits.h"
#include "contract/tensors/tensor.h"
#include "platform/base/quote.h"

namespace gpushm::tensors {
namespace {

template <typename... Args>
std::unexpected<Status> Corrupt(const Args&... args) {
  return Fail(Code::kCorrupt, Concat("invalid tensor table: ", args...),
              "publish the buffer again, with a table that gpushm has made");
}

// Whether a header or entry of this size has the fields of version 1, and whether those that follow
// it are aligned.
bool IsEntrySize(uint32_t bytes, size_t known) {
  return bytes >= known && bytes <= kMaxEntryBytes && bytes % 8 == 0;
}

Result<void> CheckHeader(const Header& header, uint64_t available) {
  if (header.type != kTableType) {
    return Corrupt("its type is ", Quote({header.type.data(), header.type.size()}));
  }
  if ((header.incompat_flags & ~kKnownIncompatFlags) != 0) {
    return Fail(Code::kIncompatible,
                Concat("a tensor table of version ", header.version, " has the unknown flags ",
                       header.incompat_flags),
                "update gpushm on this side");
  }
  if (header.version == 0) return Corrupt("its version is 0");
  if (!IsEntrySize(header.header_bytes, sizeof(Header))) {
    return Corrupt("the header has ", header.header_bytes, " bytes");
  }
  if (!IsEntrySize(header.tensor_bytes, sizeof(TensorEntry))) {
    return Corrupt("the entry of a tensor has ", header.tensor_bytes, " bytes");
  }
  if (!IsEntrySize(header.pair_bytes, sizeof(PairEntry))) {
    return Corrupt("the entry of a metadata pair has ", header.pair_bytes, " bytes");
  }
  if (header.table_bytes > available || header.table_bytes < header.header_bytes) {
    return Corrupt("it claims ", header.table_bytes, " bytes, of which ", available,
                   " are there, and a header of ", header.header_bytes);
  }
  return {};
}

// Whether a section of entries lies in the table after the header.
Result<void> CheckSection(const Header& header, const char* what, uint32_t offset, uint32_t count,
                          uint32_t entry_bytes) {
  const uint64_t end = offset + uint64_t{count} * entry_bytes;
  if (offset % 8 != 0 || offset < header.header_bytes || end > header.table_bytes) {
    return Corrupt(count, " ", what, " of ", entry_bytes, " bytes at offset ", offset,
                   " are not within its ", header.table_bytes, " bytes");
  }
  return {};
}

}  // namespace

bool TensorTable::IsTable(std::span<const std::byte> bytes) {
  return bytes.size() >= kTableType.size() &&
         std::memcmp(bytes.data(), kTableType.data(), kTableType.size()) == 0;
}

Result<TensorTable> TensorTable::Open(std::span<const std::byte> bytes, uint64_t buffer_bytes) {
  if (reinterpret_cast<uintptr_t>(bytes.data()) % 8 != 0) {
    return Fail(Code::kInvalidArgument, "a tensor table must start at a multiple of 8 bytes");
  }
  if (bytes.size() < sizeof(Header)) {
    return Corrupt("it has ", bytes.size(), " bytes, and its header needs ", sizeof(Header));
  }
  Header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  const TensorTable table(bytes.data(), header);
  auto checked = CheckHeader(header, bytes.size());
  if (checked) {
    checked = CheckSection(header, "tensors", header.tensors_offset, header.tensor_count,
                           header.tensor_bytes);
  }
  if (checked) {
    checked = CheckSection(header, "metadata pairs", header.pairs_offset, header.pair_count,
                           header.pair_bytes);
  }
  if (checked) checked = table.CheckTensors(buffer_bytes);
  if (checked) checked = table.CheckPairs();
  if (!checked) return std::unexpected(checked.error());
  return table;
}

bool TensorTable::TextIsInside(uint32_t offset, uint32_t size, uint64_t* end) const {
  const uint64_t nul = uint64_t{offset} + size;
  if (offset < header_.header_bytes || offset < *end || nul >= header_.table_bytes) return false;
  *end = nul + 1;
  return bytes_[nul] == std::byte{0};
}

Result<void> TensorTable::CheckTensors(uint64_t buffer_bytes) const {
  uint64_t end = 0;
  std::string_view last;
  for (uint32_t i = 0; i < count(); ++i) {
    const TensorEntry& entry = Entry(i);
    if (!TextIsInside(entry.name_offset, entry.name_bytes, &end)) {
      return Corrupt("the name of tensor ", i, ", ", entry.name_bytes, " bytes at offset ",
                     entry.name_offset,
                     ", overlaps another one, leaves the table, or lacks its NUL");
    }
    const std::string_view name = Text(entry.name_offset, entry.name_bytes);
    if (const char* const problem = TextProblem(name)) {
      return Corrupt("invalid name ", Quote(name), " of tensor ", i, ": ", problem);
    }
    if (i > 0 && name <= last) {
      return Corrupt("tensor ", Quote(name), " follows ", Quote(last),
                     ", but names must be unique and sorted");
    }
    last = name;
    if (auto checked = CheckTensor(entry, name, buffer_bytes); !checked) return checked;
  }
  return {};
}

Result<void> TensorTable::CheckTensor(const TensorEntry& entry, std::string_view name,
                                      uint64_t buffer_bytes) const {
  if (!IsDType(entry.dtype)) {
    return Fail(Code::kIncompatible,
                Concat("tensor ", Quote(name), " has the unknown type ", entry.dtype,
                       "; the largest known one is ", kMaxDType),
                "update gpushm on this side");
  }
  const uint64_t shape_end = entry.shape_offset + uint64_t{entry.rank} * sizeof(uint64_t);
  if (entry.rank > limits::kTensorRank ||
      (entry.rank > 0 &&
       (entry.shape_offset % 8 != 0 || entry.shape_offset < header_.header_bytes ||
        shape_end > header_.table_bytes))) {
    return Corrupt("tensor ", Quote(name), ": a shape of rank ", entry.rank, " at offset ",
                   entry.shape_offset, " leaves the table or has more than ", limits::kTensorRank,
                   " dimensions");
  }
  const std::span<const uint64_t> shape(
      reinterpret_cast<const uint64_t*>(bytes_ + (entry.rank > 0 ? entry.shape_offset : 0)),
      entry.rank);
  const auto dtype = static_cast<DType>(entry.dtype);
  if (TensorBytes(dtype, shape) != entry.bytes) {
    return Corrupt("tensor ", Quote(name), " has ", entry.bytes,
                   " bytes, which is not the size of ", DTypeName(dtype), " ", ShapeText(shape));
  }
  if (entry.offset > buffer_bytes || entry.bytes > buffer_bytes - entry.offset) {
    return Corrupt("tensor ", Quote(name), ", ", entry.bytes, " bytes at offset ", entry.offset,
                   ", ends outside of the buffer of ", buffer_bytes, " bytes");
  }
  return {};
}

Result<void> TensorTable::CheckPairs() const {
  uint64_t end = 0;
  std::string_view last;
  for (uint32_t i = 0; i < metadata_count(); ++i) {
    const PairEntry& pair = PairAt(i);
    if (!TextIsInside(pair.key_offset, pair.key_bytes, &end) ||
        !TextIsInside(pair.value_offset, pair.value_bytes, &end)) {
      return Corrupt("metadata pair ", i, ", ", pair.key_bytes, " bytes at offset ",
                     pair.key_offset, " and ", pair.value_bytes, " at ", pair.value_offset,
                     ", overlaps another text, leaves the table, or lacks a NUL");
    }
    const auto [key, value] = metadata(i);
    if (const char* const problem = TextProblem(key)) {
      return Corrupt("invalid metadata key ", Quote(key), ": ", problem);
    }
    if (const char* const problem = TextProblem(value)) {
      return Corrupt("invalid value ", Quote(value), " of metadata ", Quote(key), ": ", problem);
    }
    if (i > 0 && key <= last) {
      return Corrupt("metadata key ", Quote(key), " follows ", Quote(last),
                     ", but keys must be unique and sorted");
    }
    last = key;
  }
  return {};
}

const TensorEntry& TensorTable::Entry(uint32_t index) const {
  return *reinterpret_cast<const TensorEntry*>(bytes_ + header_.tensors_offset +
                                               uint64_t{index} * header_.tensor_bytes);
}

const PairEntry& TensorTable::PairAt(uint32_t index) const {
  return *reinterpret_cast<const PairEntry*>(bytes_ + header_.pairs_offset +
                                             uint64_t{index} * header_.pair_bytes);
}

std::string_view TensorTable::Text(uint32_t offset, uint32_t size) const {
  return {reinterpret_cast<const char*>(bytes_ + offset), size};
}

TensorView TensorTable::at(uint32_t index) const {
  const TensorEntry& entry = Entry(index);
  TensorView view{.name = Text(entry.name_offset, entry.name_bytes),
                  .dtype = static_cast<DType>(entry.dtype),
                  .offset = entry.offset,
                  .bytes = entry.bytes};
  if (entry.rank > 0) {
    view.shape = {reinterpret_cast<const uint64_t*>(bytes_ + entry.shape_offset), entry.rank};
  }
  return view;
}

std::optional<TensorView> TensorTable::Find(std::string_view name) const {
  uint32_t low = 0;
  uint32_t high = count();
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    const TensorEntry& entry = Entry(middle);
    const int order = Text(entry.name_offset, entry.name_bytes).compare(name);
    if (order == 0) return at(middle);
    (order < 0 ? low : high) = order < 0 ? middle + 1 : middle;
  }
  return std::nullopt;
}

TensorTable::Pair TensorTable::metadata(uint32_t index) const {
  const PairEntry& pair = PairAt(index);
  return {Text(pair.key_offset, pair.key_bytes), Text(pair.value_offset, pair.value_bytes)};
}

std::optional<std::string_view> TensorTable::FindMetadata(std::string_view key) const {
  uint32_t low = 0;
  uint32_t high = metadata_count();
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    const Pair pair = metadata(middle);
    const int order = pair.first.compare(key);
    if (order == 0) return pair.second;
    (order < 0 ? low : high) = order < 0 ? middle + 1 : middle;
  }
  return std::nullopt;
}

}  // namespace gpushm::tensors
