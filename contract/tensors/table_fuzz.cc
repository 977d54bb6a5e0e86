// Goal: no bytes make the reader leave the table, and a table that it accepts answers every query.
// Method: the first eight bytes are the size of the buffer, the rest is the table, in memory of
// just its size. Everything that the views point at is read.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "contract/tensors/encode.h"
#include "contract/tensors/table.h"
#include "contract/tensors/tensor.h"

namespace gpushm::tensors {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

bool EndsWithNul(std::string_view text) { return text.data()[text.size()] == '\0'; }

void CheckTable(const TensorTable& table, uint64_t buffer_bytes) {
  std::vector<Tensor> tensors;
  for (uint32_t i = 0; i < table.count(); ++i) {
    const TensorView tensor = table.at(i);
    Require(TextProblem(tensor.name) == nullptr && EndsWithNul(tensor.name));
    Require(TensorBytes(tensor.dtype, tensor.shape) == tensor.bytes);
    Require(tensor.bytes <= buffer_bytes && tensor.offset <= buffer_bytes - tensor.bytes);
    const auto found = table.Find(tensor.name);
    Require(found && found->name.data() == tensor.name.data());
    tensors.push_back({.name = std::string(tensor.name),
                       .dtype = tensor.dtype,
                       .shape = {tensor.shape.begin(), tensor.shape.end()},
                       .offset = tensor.offset,
                       .bytes = tensor.bytes});
  }
  Metadata metadata;
  for (uint32_t i = 0; i < table.metadata_count(); ++i) {
    const auto [key, value] = table.metadata(i);
    Require(EndsWithNul(key) && EndsWithNul(value) && table.FindMetadata(key) == value);
    metadata.emplace(key, value);
  }
  const auto again = EncodeTable(tensors, metadata, buffer_bytes);
  Require(again && TensorTable::Open(*again, buffer_bytes));
}

}  // namespace
}  // namespace gpushm::tensors

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gpushm::tensors;
  uint64_t buffer_bytes = 0;
  if (size < sizeof buffer_bytes) return 0;
  std::memcpy(&buffer_bytes, data, sizeof buffer_bytes);
  const size_t table_bytes = size - sizeof buffer_bytes;
  // Not the input itself, because the table must start at a multiple of 8.
  const auto copy = std::make_unique<std::byte[]>(table_bytes);
  std::memcpy(copy.get(), data + sizeof buffer_bytes, table_bytes);
  const auto table = TensorTable::Open({copy.get(), table_bytes}, buffer_bytes);
  if (table) {
    CheckTable(*table, buffer_bytes);
  } else {
    Require(!table.error().what().empty());
  }
  return 0;
}
