// Helpers for the tests of this folder.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "contract/tensors/tensor.h"

namespace gpushm::tensors::testing {

// A tensor of the size that type and shape give.
inline Tensor Make(std::string name, DType dtype, std::vector<uint64_t> shape,
                   uint64_t offset = 0) {
  Tensor tensor{.name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
  tensor.offset = offset;
  tensor.bytes = TensorBytes(tensor.dtype, tensor.shape).value_or(0);
  return tensor;
}

}  // namespace gpushm::tensors::testing
