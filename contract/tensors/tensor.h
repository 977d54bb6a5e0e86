// A tensor as programs handle it before it is in a table or a file, and the rules for its texts.
// Threads: pure functions; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "contract/tensors/dtype.h"

namespace gpushm::tensors {

struct Tensor {
  std::string name{};
  DType dtype = DType::kU8;
  std::vector<uint64_t> shape{};
  // Of its first byte: within the buffer, or (of a file's header) within the file's data section.
  uint64_t offset = 0;
  uint64_t bytes = 0;

  friend bool operator==(const Tensor&, const Tensor&) = default;
};

// safetensors' `__metadata__`.
using Metadata = std::map<std::string, std::string, std::less<>>;

// Tensors in a buffer begin at multiples of it where gpushm chooses the offset.
inline constexpr uint64_t kTensorAlignBytes = 256;

// nullptr if a tensor may have this name, or metadata this key or value; otherwise the reason why
// not. It must be UTF-8 without NUL.
const char* TextProblem(std::string_view text);

}  // namespace gpushm::tensors
