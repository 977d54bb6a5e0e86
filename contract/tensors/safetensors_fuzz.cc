// Goal: no header crashes the parser or makes it throw, and what it accepts keeps the promises of
// safetensors.h, can be laid out, described and saved. Method: the first eight bytes are the size
// of the data, the rest is the header.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "contract/tensors/encode.h"
#include "contract/tensors/plan.h"
#include "contract/tensors/safetensors.h"
#include "contract/tensors/table.h"

namespace gpushm::tensors {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void CheckFile(const SafetensorsFile& file, uint64_t data_bytes) {
  uint64_t end = 0;
  for (const Tensor& tensor : file.tensors) {
    Require(TextProblem(tensor.name) == nullptr);
    Require(tensor.offset == end && TensorBytes(tensor.dtype, tensor.shape) == tensor.bytes);
    end += tensor.bytes;
  }
  Require(end == data_bytes);
  const auto plan = PlanLoad({file});
  if (!plan) return Require(plan.error().code() == Code::kExhausted);
  uint64_t moved = 0;
  for (const Segment& segment : plan->segments) {
    Require(segment.bytes > 0 && segment.buffer_offset + segment.bytes <= plan->buffer_bytes);
    moved += segment.bytes;
  }
  Require(moved == data_bytes);
  const auto bytes = EncodeTable(plan->tensors, plan->metadata, plan->buffer_bytes);
  Require(bytes.has_value());
  const auto table = TensorTable::Open(*bytes, plan->buffer_bytes);
  Require(table.has_value());
  const auto save = PlanSave(*table);
  Require(save.has_value());
  const auto again = ParseSafetensorsHeader(std::string_view(save->head).substr(8), data_bytes);
  // The order of empty tensors at one offset may differ: in the plan they have offsets of their
  // own.
  Require(again && again->tensors.size() == file.tensors.size() &&
          again->metadata == file.metadata);
}

}  // namespace
}  // namespace gpushm::tensors

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gpushm::tensors;
  uint64_t data_bytes = 0;
  if (size < sizeof data_bytes) return 0;
  std::memcpy(&data_bytes, data, sizeof data_bytes);
  const std::string_view header(reinterpret_cast<const char*>(data) + sizeof data_bytes,
                                size - sizeof data_bytes);
  const auto file = ParseSafetensorsHeader(header, data_bytes);
  if (file) {
    CheckFile(*file, data_bytes);
  } else {
    Require(!file.error().what().empty() && file.error().what().size() < 1000);
  }
  return 0;
}
