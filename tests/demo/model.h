// A model file in the safetensors format: 8 bytes with the header's length, a JSON header with the
// type, shape and bytes of each tensor, then the bytes.
// Format: https://huggingface.co/docs/safetensors
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "platform/base/status.h"

namespace gpushm::demo {

struct Tensor {
  std::string name;
  std::string type;    // "F32" ...
  std::string shape;   // "[384, 1536]"
  uint64_t begin = 0;  // Offsets in the file.
  uint64_t end = 0;
};

class Model {
 public:
  // Maps the file. A file in another format is a model with one tensor, "(file)".
  static Result<Model> Open(const std::string& path);

  std::span<const std::byte> bytes() const { return {data_, size_bytes_}; }
  const std::vector<Tensor>& tensors() const { return tensors_; }

  Model(Model&& other) noexcept;
  Model& operator=(Model&&) = delete;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  ~Model();

 private:
  Model(const std::byte* data, uint64_t size_bytes) : data_(data), size_bytes_(size_bytes) {}

  const std::byte* data_;
  uint64_t size_bytes_;
  std::vector<Tensor> tensors_;
};

// FNV-1a over 64-bit words (and the bytes of a last, shorter one). It tells two contents apart, but
// does not protect against forgery.
uint64_t Hash(std::span<const std::byte> bytes);

}  // namespace gpushm::demo
