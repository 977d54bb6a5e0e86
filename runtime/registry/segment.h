// Owners of a segment's memory: the mapping, and the sealed memfd behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"
#include "runtime/registry/layout.h"

namespace gpushm::registry {

// Owner of a mapping made by mmap.
class Mapping {
 public:
  Mapping() = default;
  Mapping(void* address, size_t bytes) : address_(address), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();

  void* address() const { return address_; }
  size_t bytes() const { return bytes_; }

 private:
  void* address_ = nullptr;
  size_t bytes_ = 0;
};

struct WritableSegment {
  UniqueFd fd;
  Mapping mapping;
};

// A memfd of that size, its pages allocated (no SIGBUS later), mapped for writing, then sealed:
// from there on nobody, not even root, can make another writable mapping, write or resize it.
Result<WritableSegment> MakeSealedSegment(uint64_t bytes);

// Maps a received segment for reading. Refuses what could kill a reader or change under it:
// anything but a memfd on tmpfs with all four seals, its pages allocated, of a size in bounds.
Result<Mapping> MapSealedSegment(const UniqueFd& fd);

// The header's constants for a segment of today's layout.
Result<HeaderConstants> NewHeaderConstants(uint32_t slot_count, uint64_t generation_floor);

// The header of `bytes` mapped bytes, copied and validated: kIncompatible if it is of a layout that
// we do not speak, kCorrupt if it contradicts itself or the size.
Result<HeaderConstants> ValidateHeader(const void* address, uint64_t bytes);

}  // namespace gpushm::registry
