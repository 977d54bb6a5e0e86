#include "contract/tensors/encode.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string_view>

#include "contract/limits.h"
#include "contract/tensors/layout.h"
#include "platform/base/quote.h"

namespace gpushm::tensors {
namespace {

Result<void> CheckTensor(const Tensor& tensor, uint64_t buffer_bytes) {
  if (const char* const problem = TextProblem(tensor.name)) {
    return Fail(Code::kInvalidArgument,
                Concat("invalid tensor name ", Quote(tensor.name), ": ", problem));
  }
  if (tensor.shape.size() > limits::kTensorRank) {
    return Fail(Code::kInvalidArgument,
                Concat("tensor ", Quote(tensor.name), " has ", tensor.shape.size(),
                       " dimensions, and ", limits::kTensorRank, " are the most"));
  }
  if (!IsDType(static_cast<uint16_t>(tensor.dtype))) {
    return Fail(Code::kInvalidArgument,
                Concat("tensor ", Quote(tensor.name), " has the unknown type ",
                       static_cast<uint16_t>(tensor.dtype)));
  }
  if (TensorBytes(tensor.dtype, tensor.shape) != tensor.bytes) {
    return Fail(Code::kInvalidArgument,
                Concat("tensor ", Quote(tensor.name), " has ", tensor.bytes,
                       " bytes, which is not the size of ", DTypeName(tensor.dtype), " ",
                       ShapeText(tensor.shape)));
  }
  if (tensor.offset > buffer_bytes || tensor.bytes > buffer_bytes - tensor.offset) {
    return Fail(Code::kInvalidArgument,
                Concat("tensor ", Quote(tensor.name), ", ", tensor.bytes, " bytes at offset ",
                       tensor.offset, ", ends outside of the buffer of ", buffer_bytes, " bytes"));
  }
  return {};
}

Result<void> CheckMetadata(const Metadata& metadata) {
  if (metadata.size() > limits::kMetadataPairs) {
    return Fail(Code::kExhausted, Concat(metadata.size(), " pairs of metadata exceed the limit of ",
                                         limits::kMetadataPairs));
  }
  for (const auto& [key, value] : metadata) {
    if (const char* const problem = TextProblem(key)) {
      return Fail(Code::kInvalidArgument,
                  Concat("invalid metadata key ", Quote(key), ": ", problem));
    }
    if (const char* const problem = TextProblem(value)) {
      return Fail(Code::kInvalidArgument, Concat("invalid value ", Quote(value), " of metadata ",
                                                 Quote(key), ": ", problem));
    }
  }
  return {};
}

// Indices of the tensors in the order of their names.
Result<std::vector<uint32_t>> OrderByName(std::span<const Tensor> tensors) {
  std::vector<uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto name = [&](uint32_t index) -> std::string_view { return tensors[index].name; };
  std::ranges::sort(order, {}, name);
  const auto twice = std::ranges::adjacent_find(order, {}, name);
  if (twice != order.end()) {
    return Fail(Code::kInvalidArgument, Concat("two tensors have the name ", Quote(name(*twice))));
  }
  return order;
}

// Fills sections of the table, each from its own position on.
class Writer {
 public:
  Writer(std::vector<std::byte>* table, uint64_t shapes, uint64_t texts)
      : table_(table->data()), shapes_(shapes), texts_(texts) {}

  template <typename T>
  void Store(uint64_t offset, const T& value) {
    std::memcpy(table_ + offset, &value, sizeof value);
  }
  uint32_t AddText(std::string_view text) {
    const uint64_t at = texts_;
    if (!text.empty()) std::memcpy(table_ + at, text.data(), text.size());
    texts_ += text.size() + 1;  // The table was zeroed, so its NUL is there.
    return static_cast<uint32_t>(at);
  }
  uint32_t AddShape(std::span<const uint64_t> shape) {
    const uint64_t at = shapes_;
    for (const uint64_t dimension : shape) {
      Store(shapes_, dimension);
      shapes_ += sizeof dimension;
    }
    return static_cast<uint32_t>(at);
  }

 private:
  std::byte* const table_;
  uint64_t shapes_;
  uint64_t texts_;
};

}  // namespace

Result<std::vector<std::byte>> EncodeTable(std::span<const Tensor> tensors,
                                           const Metadata& metadata, uint64_t buffer_bytes) {
  if (tensors.size() > limits::kTensors) {
    return Fail(Code::kExhausted,
                Concat(tensors.size(), " tensors exceed the limit of ", limits::kTensors));
  }
  if (auto checked = CheckMetadata(metadata); !checked) return std::unexpected(checked.error());
  uint64_t shape_bytes = 0;
  uint64_t text_bytes = 0;
  for (const Tensor& tensor : tensors) {
    if (auto checked = CheckTensor(tensor, buffer_bytes); !checked) {
      return std::unexpected(checked.error());
    }
    shape_bytes += tensor.shape.size() * sizeof(uint64_t);
    text_bytes += tensor.name.size() + 1;
  }
  for (const auto& [key, value] : metadata) text_bytes += key.size() + value.size() + 2;
  const auto order = OrderByName(tensors);
  if (!order) return std::unexpected(order.error());

  const uint64_t tensors_offset = sizeof(Header);
  const uint64_t pairs_offset = tensors_offset + tensors.size() * sizeof(TensorEntry);
  const uint64_t shapes_offset = pairs_offset + metadata.size() * sizeof(PairEntry);
  const uint64_t texts_offset = shapes_offset + shape_bytes;
  const uint64_t table_bytes = texts_offset + text_bytes;
  if (table_bytes > limits::kDescriptionBytes) {
    return Fail(Code::kExhausted,
                Concat("the table of ", tensors.size(), " tensors has ", table_bytes,
                       " bytes, and a description has at most ", limits::kDescriptionBytes),
                "use shorter names or fewer tensors");
  }

  std::vector<std::byte> table(table_bytes);
  Writer writer(&table, shapes_offset, texts_offset);
  writer.Store(0, Header{.type = kTableType,
                         .version = kTableVersion,
                         .incompat_flags = 0,
                         .header_bytes = sizeof(Header),
                         .tensor_bytes = sizeof(TensorEntry),
                         .pair_bytes = sizeof(PairEntry),
                         .table_bytes = static_cast<uint32_t>(table_bytes),
                         .tensor_count = static_cast<uint32_t>(tensors.size()),
                         .tensors_offset = static_cast<uint32_t>(tensors_offset),
                         .pair_count = static_cast<uint32_t>(metadata.size()),
                         .pairs_offset = static_cast<uint32_t>(pairs_offset)});
  uint64_t at = tensors_offset;
  for (const uint32_t index : *order) {
    const Tensor& tensor = tensors[index];
    writer.Store(at, TensorEntry{.offset = tensor.offset,
                                 .bytes = tensor.bytes,
                                 .name_offset = writer.AddText(tensor.name),
                                 .name_bytes = static_cast<uint32_t>(tensor.name.size()),
                                 .shape_offset = writer.AddShape(tensor.shape),
                                 .rank = static_cast<uint16_t>(tensor.shape.size()),
                                 .dtype = static_cast<uint16_t>(tensor.dtype)});
    at += sizeof(TensorEntry);
  }
  at = pairs_offset;
  for (const auto& [key, value] : metadata) {
    const uint32_t key_offset = writer.AddText(key);
    writer.Store(at, PairEntry{.key_offset = key_offset,
                               .key_bytes = static_cast<uint32_t>(key.size()),
                               .value_offset = writer.AddText(value),
                               .value_bytes = static_cast<uint32_t>(value.size())});
    at += sizeof(PairEntry);
  }
  return table;
}

}  // namespace gpushm::tensors
