#include "contract/tensors/digest.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace gpushm::tensors {
namespace {

// What a list of parts is made of: numbers, little-endian, and texts.
class List {
 public:
  static constexpr size_t kTypicalPartBytes = 96;
  List(std::string_view type, size_t parts) {
    bytes_.reserve((parts + 1) * kTypicalPartBytes);
    Add(type);
    bytes_.resize(8);
  }
  void Add(std::string_view text) {
    const auto bytes = std::as_bytes(std::span(text));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  template <typename T>
  void Add(T number) {
    Add(std::string_view(reinterpret_cast<const char*>(&number), sizeof number));
  }
  void Add(const Digest& digest) {
    Add(digest.halves[0]);
    Add(digest.halves[1]);
  }
  Digest digest() const { return DigestOf(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace

std::vector<DigestPart> RawParts(uint64_t content_bytes) {
  std::vector<DigestPart> parts;
  for (uint64_t at = 0; at < content_bytes; at += kDigestBlockBytes) {
    parts.push_back({at, std::min(kDigestBlockBytes, content_bytes - at)});
  }
  return parts;
}

Digest RawDigest(uint64_t content_bytes, std::span<const Digest> parts) {
  List list("GSHRAW", parts.size());
  list.Add(content_bytes);
  for (const Digest& part : parts) list.Add(part);
  return list.digest();
}

std::vector<DigestPart> TensorParts(const TensorTable& table) {
  std::vector<DigestPart> parts;
  parts.reserve(table.count());
  for (uint32_t i = 0; i < table.count(); ++i) {
    const TensorView tensor = table.at(i);
    parts.push_back({tensor.offset, tensor.bytes});
  }
  return parts;
}

Digest TensorsDigest(const TensorTable& table, std::span<const Digest> parts) {
  List list("GSHTENS", parts.size());
  list.Add(uint64_t{table.count()});
  for (uint32_t i = 0; i < table.count(); ++i) {
    const TensorView tensor = table.at(i);
    list.Add(static_cast<uint32_t>(tensor.name.size()));
    list.Add(static_cast<uint16_t>(tensor.dtype));
    list.Add(static_cast<uint16_t>(tensor.shape.size()));
    for (const uint64_t dimension : tensor.shape) list.Add(dimension);
    list.Add(parts[i]);
    list.Add(tensor.name);
  }
  return list.digest();
}

}  // namespace gpushm::tensors
