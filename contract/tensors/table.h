// Reads a tensor table (layout.h) in place. Open checks every offset, size and text once, so later
// queries cannot leave the table, whoever wrote it. The bytes must not change afterwards: they are
// in a sealed memfd, or the caller's own.
//
// Threads: any; a table is constant. Nothing allocates, except for the text of an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "contract/tensors/dtype.h"
#include "contract/tensors/layout.h"
#include "platform/base/status.h"

namespace gpushm::tensors {

// Points into the table. A NUL follows the name.
struct TensorView {
  std::string_view name{};
  DType dtype = DType::kU8;
  std::span<const uint64_t> shape{};
  uint64_t offset = 0;  // Within the buffer.
  uint64_t bytes = 0;
};

class TensorTable {
 public:
  using Pair = std::pair<std::string_view, std::string_view>;

  // Whether a description begins with the type of a tensor table.
  static bool IsTable(std::span<const std::byte> bytes);

  // `bytes` must stay mapped while the table or a view of it is used, and start at a multiple of 8.
  // `buffer_bytes` is the size of the buffer that the table describes. kCorrupt: a rule of layout.h
  // is broken. kIncompatible: a later version of gpushm wrote it. Takes time in proportion to the
  // table's size.
  static Result<TensorTable> Open(std::span<const std::byte> bytes, uint64_t buffer_bytes);

  uint32_t count() const { return header_.tensor_count; }
  // In the order of their names' bytes; index < count().
  TensorView at(uint32_t index) const;
  std::optional<TensorView> Find(std::string_view name) const;

  uint32_t metadata_count() const { return header_.pair_count; }
  // Key and value, in the order of the keys' bytes; index < metadata_count(). A NUL follows each.
  Pair metadata(uint32_t index) const;
  std::optional<std::string_view> FindMetadata(std::string_view key) const;

 private:
  TensorTable(const std::byte* bytes, const Header& header) : bytes_(bytes), header_(header) {}

  const TensorEntry& Entry(uint32_t index) const;
  const PairEntry& PairAt(uint32_t index) const;
  std::string_view Text(uint32_t offset, uint32_t size) const;
  Result<void> CheckTensors(uint64_t buffer_bytes) const;
  Result<void> CheckTensor(const TensorEntry& entry, std::string_view name,
                           uint64_t buffer_bytes) const;
  Result<void> CheckPairs() const;
  // Whether the text lies in the table at or after `*end`, followed by NUL. Moves `*end` behind it.
  bool TextIsInside(uint32_t offset, uint32_t size, uint64_t* end) const;

  const std::byte* bytes_;
  Header header_;
};

}  // namespace gpushm::tensors
