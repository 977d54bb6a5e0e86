#include "tests/demo/model.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "platform/base/unique_fd.h"

namespace gpushm::demo {
namespace {

// Empty if the bytes are not safetensors.
std::vector<Tensor> ParseHeader(std::span<const std::byte> bytes) {
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof header_bytes) return {};
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  if (header_bytes > bytes.size() - sizeof header_bytes) return {};
  const char* const text = reinterpret_cast<const char*>(bytes.data()) + sizeof header_bytes;
  const auto header = nlohmann::json::parse(text, text + header_bytes, nullptr, false);
  if (!header.is_object()) return {};
  const uint64_t data_begin = sizeof header_bytes + header_bytes;
  std::vector<Tensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    if (!entry.is_object() || !entry.contains("data_offsets") || !entry.contains("dtype"))
      return {};
    const auto& offsets = entry["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2) return {};
    Tensor tensor;
    tensor.name = name;
    tensor.type = entry["dtype"].get<std::string>();
    tensor.shape = entry.value("shape", nlohmann::json::array()).dump();
    tensor.begin = data_begin + offsets[0].get<uint64_t>();
    tensor.end = data_begin + offsets[1].get<uint64_t>();
    if (tensor.begin > tensor.end || tensor.end > bytes.size()) return {};
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace

Result<Model> Model::Open(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return FailSystem(errno, Concat("open ", path), "name an existing file with --file");
  struct stat info{};
  if (fstat(file.get(), &info) != 0) return FailSystem(errno, Concat("stat ", path));
  const auto size = static_cast<uint64_t>(info.st_size);
  if (size == 0) return Fail(Code::kInvalidArgument, Concat(path, " is empty"));
  void* const data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) return FailSystem(errno, Concat("mmap ", path));
  Model model(static_cast<const std::byte*>(data), size);
  try {
    model.tensors_ = ParseHeader(model.bytes());
  } catch (const nlohmann::json::exception&) {  // A field has another type than the format allows.
    model.tensors_.clear();
  }
  if (model.tensors_.empty()) model.tensors_.push_back({"(file)", "bytes", "[]", 0, size});
  return model;
}

Model::Model(Model&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(other.size_bytes_),
      tensors_(std::move(other.tensors_)) {}

Model::~Model() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_bytes_);
}

uint64_t Hash(std::span<const std::byte> bytes) {
  constexpr uint64_t kPrime = 0x100000001b3;
  uint64_t hash = 0xcbf29ce484222325;
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    hash = (hash ^ word) * kPrime;
    hash ^= hash >> 29;
  }
  for (; at < bytes.size(); ++at) hash = (hash ^ static_cast<uint64_t>(bytes[at])) * kPrime;
  return hash;
}

}  // namespace gpushm::demo
