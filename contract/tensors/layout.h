// The bytes of a tensor table: the description of a buffer that holds tensors. Library, gpushmctl
// and loader share it in every combination of their versions. Little-endian, 64-bit, fixed width;
// offsets from the start of the table, never pointers. The table starts at a multiple of 8.
//
//   0               Header, header_bytes
//   tensors_offset  TensorEntry, tensor_bytes each, in the order of their names' bytes
//   pairs_offset    PairEntry, pair_bytes each: metadata, in the order of their keys' bytes
//   shapes          the dimensions of each tensor, u64 each, at multiples of 8
//   texts           names, keys and values, each followed by a NUL
//
// Rules
//   (1) Names are unique, and so are keys. A table is searched by bisection.
//   (2) Texts do not overlap: the names follow each other in the order of their tensors, and keys
//       and values in the order of their pairs. So a reader checks all of them in one pass,
//       whatever a hostile writer claims. Shapes may overlap, and so may the bytes of tensors in
//       the buffer.
//   (3) A text is UTF-8 without NUL, and may be empty. Its NUL is for readers in C, which may point
//       at it.
//   (4) A tensor's size is that of its type times its shape, and it lies within the buffer.
//
// Rules of change
//   (5) Nothing here moves or changes its meaning while the incompatible flags stay 0. A new field
//       of an entry or of the header is appended, and tensor_bytes, pair_bytes or header_bytes
//       grows by a multiple of 8. Reserved fields are zero, and readers ignore them.
//   (6) A reader uses header_bytes, tensor_bytes and pair_bytes of the header. It reads the fields
//       that it knows and skips the others. It accepts every version whose incompatible flags and
//       types of elements it knows.
//   (7) A change that an older reader would misinterpret sets a bit of incompat_flags. A new type
//       of elements needs no bit, because older readers refuse its number.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace gpushm::tensors {

// The type of a description that is a tensor table.
inline constexpr std::array<char, 8> kTableType = {'G', 'S', 'H', 'T', 'E', 'N', 'S', '\0'};
inline constexpr uint32_t kTableVersion = 1;
inline constexpr uint32_t kKnownIncompatFlags = 0;

// Bounds that a reader accepts for the sizes of header and entries; the lower ones are those of
// version 1.
inline constexpr uint32_t kMaxEntryBytes = 4096;

struct Header {
  std::array<char, 8> type;
  uint32_t version;
  uint32_t incompat_flags;
  uint32_t header_bytes;
  uint32_t tensor_bytes;
  uint32_t pair_bytes;
  uint32_t table_bytes;  // Of the whole table; the memory that holds it may be longer.
  uint32_t tensor_count;
  uint32_t tensors_offset;
  uint32_t pair_count;
  uint32_t pairs_offset;
};
static_assert(sizeof(Header) == 48 && std::is_trivially_copyable_v<Header>);
static_assert(offsetof(Header, version) == 8 && offsetof(Header, header_bytes) == 16 &&
              offsetof(Header, table_bytes) == 28 && offsetof(Header, pairs_offset) == 44);

struct TensorEntry {
  uint64_t offset;  // Within the buffer.
  uint64_t bytes;
  uint32_t name_offset;
  uint32_t name_bytes;    // Without the NUL.
  uint32_t shape_offset;  // A multiple of 8; ignored if the rank is 0.
  uint16_t rank;
  uint16_t dtype;
};
static_assert(sizeof(TensorEntry) == 32 && std::is_trivially_copyable_v<TensorEntry>);
static_assert(offsetof(TensorEntry, bytes) == 8 && offsetof(TensorEntry, name_offset) == 16 &&
              offsetof(TensorEntry, shape_offset) == 24 && offsetof(TensorEntry, rank) == 28 &&
              offsetof(TensorEntry, dtype) == 30);

struct PairEntry {
  uint32_t key_offset;
  uint32_t key_bytes;
  uint32_t value_offset;
  uint32_t value_bytes;
};
static_assert(sizeof(PairEntry) == 16 && std::is_trivially_copyable_v<PairEntry>);
static_assert(offsetof(PairEntry, value_offset) == 8);

static_assert(std::endian::native == std::endian::little && sizeof(void*) == 8);

}  // namespace gpushm::tensors
