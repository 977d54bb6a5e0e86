#include "contract/tensors/plan.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>
#include <tuple>
#include <utility>

#include "contract/limits.h"
#include "contract/tensors/safetensors.h"
#include "platform/base/quote.h"

namespace gpushm::tensors {
namespace {

// A file's offsets are signed numbers of 64 bits.
constexpr uint64_t kMaxDataBytes = uint64_t{1} << 62;

void AddSegment(const Segment& next, std::vector<Segment>* segments) {
  if (next.bytes == 0) return;
  if (!segments->empty()) {
    Segment& last = segments->back();
    if (last.file == next.file && last.file_offset + last.bytes == next.file_offset &&
        last.buffer_offset + last.bytes == next.buffer_offset) {
      last.bytes += next.bytes;
      return;
    }
  }
  segments->push_back(next);
}

Result<void> CheckCounts(std::span<const SafetensorsFile> files) {
  if (files.size() > limits::kTensorFiles) {
    return Fail(Code::kExhausted,
                Concat(files.size(), " tensor files exceed the limit of ", limits::kTensorFiles));
  }
  size_t tensors = 0;
  for (const SafetensorsFile& file : files) tensors += file.tensors.size();
  if (tensors <= limits::kTensors) return {};
  return Fail(Code::kExhausted, Concat(tensors, " tensors exceed the limit of ", limits::kTensors));
}

// Within each file they are: ReadSafetensors.
Result<void> CheckNamesUnique(std::span<const SafetensorsFile> files) {
  if (files.size() < 2) return {};
  using Named = std::pair<std::string_view, const SafetensorsFile*>;
  std::vector<Named> names;
  for (const SafetensorsFile& file : files) {
    for (const Tensor& tensor : file.tensors) names.emplace_back(tensor.name, &file);
  }
  std::ranges::sort(names, {}, &Named::first);
  const auto twice = std::ranges::adjacent_find(names, {}, &Named::first);
  if (twice == names.end()) return {};
  return Fail(Code::kInvalidArgument, Concat("tensor ", Quote(twice->first),
                                             " is in two files: ", Quote(twice->second->name),
                                             " and ", Quote(std::next(twice)->second->name)));
}

// JSON with its quotes. A table has valid UTF-8 alone.
std::string JsonText(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void AppendMetadata(const TensorTable& table, std::string* header) {
  if (table.metadata_count() == 0) return;
  *header += JsonText(kMetadataKey) + ":{";
  for (uint32_t i = 0; i < table.metadata_count(); ++i) {
    const auto [key, value] = table.metadata(i);
    if (i > 0) *header += ',';
    *header += JsonText(key) + ":" + JsonText(value);
  }
  *header += '}';
}

void AppendTensor(const TensorView& tensor, uint64_t begin, std::string* header) {
  if (header->size() > 1) *header += ',';
  *header += JsonText(tensor.name) + ":{\"dtype\":\"";
  *header += DTypeName(tensor.dtype);
  *header += "\",\"shape\":[";
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    if (i > 0) *header += ',';
    *header += std::to_string(tensor.shape[i]);
  }
  *header += "],\"data_offsets\":[" + std::to_string(begin) + "," +
             std::to_string(begin + tensor.bytes) + "]}";
}

// Indices of the tensors in the order of their bytes in the buffer.
std::vector<uint32_t> OrderByOffset(const TensorTable& table) {
  std::vector<uint32_t> order(table.count());
  std::iota(order.begin(), order.end(), 0U);
  // Those of one range in the order of the table, which is that of their names.
  std::ranges::sort(order, {}, [&](uint32_t index) {
    const TensorView tensor = table.at(index);
    return std::tuple(tensor.offset, tensor.bytes, index);
  });
  return order;
}

// The header's length and the header, padded with spaces so that the data begins at a multiple of
// 8, as the reference implementation does.
Result<std::string> Head(std::string header) {
  header.resize((header.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  if (header.size() > limits::kSafetensorsHeaderBytes) {
    return Fail(Code::kExhausted,
                Concat("the header of the file would have ", header.size(),
                       " bytes, and the limit is ", limits::kSafetensorsHeaderBytes));
  }
  const uint64_t length = header.size();
  std::string head(kLengthBytes, '\0');
  std::memcpy(head.data(), &length, sizeof length);
  return head + header;
}

}  // namespace

Result<LoadPlan> PlanLoad(std::vector<SafetensorsFile> files) {
  auto checked = CheckCounts(files);
  if (checked) checked = CheckNamesUnique(files);
  if (!checked) return std::unexpected(checked.error());
  LoadPlan plan;
  size_t count = 0;
  for (const SafetensorsFile& file : files) count += file.tensors.size();
  plan.tensors.reserve(count);
  for (uint32_t number = 0; number < files.size(); ++number) {
    SafetensorsFile& file = files[number];
    for (Tensor& tensor : file.tensors) {
      const uint64_t at =
          (plan.buffer_bytes + kTensorAlignBytes - 1) / kTensorAlignBytes * kTensorAlignBytes;
      if (at > limits::kBufferBytes || tensor.bytes > limits::kBufferBytes - at) {
        return Fail(Code::kExhausted,
                    Concat("tensor ", Quote(tensor.name), " of ", tensor.bytes,
                           " bytes would end outside of the largest buffer, which has ",
                           limits::kBufferBytes));
      }
      AddSegment({.file = number,
                  .file_offset = file.data_offset + tensor.offset,
                  .buffer_offset = at,
                  .bytes = tensor.bytes},
                 &plan.segments);
      plan.buffer_bytes = at + tensor.bytes;
      tensor.offset = at;
      plan.tensors.push_back(std::move(tensor));
    }
    plan.metadata.merge(file.metadata);
    file = {};  // Its memory is not needed any more.
  }
  return plan;
}

Result<SavePlan> PlanSave(const TensorTable& table) {
  if (table.Find(kMetadataKey)) {
    return Fail(Code::kInvalidArgument,
                Concat("a safetensors file cannot have a tensor ", Quote(kMetadataKey)),
                "give the tensor another name");
  }
  SavePlan plan;
  std::string header = "{";
  AppendMetadata(table, &header);
  const std::vector<uint32_t> order = OrderByOffset(table);
  uint64_t data_bytes = 0;
  for (const uint32_t index : order) {
    const TensorView tensor = table.at(index);
    if (tensor.bytes > kMaxDataBytes - data_bytes) {
      return Fail(Code::kExhausted,
                  Concat("the file would have more than ", kMaxDataBytes, " bytes of tensors"));
    }
    AppendTensor(tensor, data_bytes, &header);
    data_bytes += tensor.bytes;
  }
  auto head = Head(header + "}");
  if (!head) return std::unexpected(head.error());
  plan.head = std::move(*head);
  plan.file_bytes = plan.head.size();
  for (const uint32_t index : order) {
    const TensorView tensor = table.at(index);
    AddSegment(
        {.file_offset = plan.file_bytes, .buffer_offset = tensor.offset, .bytes = tensor.bytes},
        &plan.segments);
    plan.file_bytes += tensor.bytes;
  }
  return plan;
}

}  // namespace gpushm::tensors
