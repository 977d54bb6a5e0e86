// Helpers for tests of tensors.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contract/tensors/tensor.h"
#include "platform/base/status.h"

namespace gpushm::tensors::testing {

// A tensor of the size that type and shape give.
inline Tensor Make(std::string name, DType dtype, std::vector<uint64_t> shape,
                   uint64_t offset = 0) {
  Tensor tensor{.name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
  tensor.offset = offset;
  tensor.bytes = TensorBytes(tensor.dtype, tensor.shape).value_or(0);
  return tensor;
}

// A safetensors file with one tensor of these bytes for each name. `first` comes before them in the
// header.
inline std::string FileOf(const std::vector<std::pair<std::string, std::string>>& tensors,
                          std::string_view first = "") {
  std::string header = Concat("{", first);
  std::string data;
  for (const auto& [name, bytes] : tensors) {
    header += Concat(header.size() > 1 ? "," : "", '"', name, R"(":{"dtype":"U8","shape":[)",
                     bytes.size(), R"(],"data_offsets":[)", data.size(), ',',
                     data.size() + bytes.size(), "]}");
    data += bytes;
  }
  header += "}";
  std::string file(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(file.data(), &size, sizeof size);
  return file + header + data;
}

}  // namespace gpushm::tensors::testing
