// Memory that two processes share by a sealed memfd: its owners, and the checks before a stranger's
// is mapped. A file that its maker can shrink, or that has no pages behind it, kills its readers by
// SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm {

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
  // It stays mapped until the process ends.
  void Keep() { address_ = nullptr; }
  // Gives the memory back and keeps the addresses: from here on they read as zeros.
  void Blank() noexcept;

 private:
  void* address_ = nullptr;
  size_t bytes_ = 0;
};

struct WritableSegment {
  UniqueFd fd;
  Mapping mapping;
};

// Who may write: its maker alone, or whoever gets the descriptor, too.
enum class Writers { kMaker, kAll };

// A memfd of that size, its pages allocated (no SIGBUS later), mapped for writing, then sealed:
// from there on nobody, not even root, can resize it and, with kMaker, make another writable
// mapping or write it. `what` names it in errors: "registry".
Result<WritableSegment> MakeSealed(std::string_view what, uint64_t bytes, Writers writers);

// Maps what was received, for writing with kAll (unless `read_only`), else for reading. Refuses
// what could kill who touches it or, with kMaker, change under its reader: anything but a memfd on
// tmpfs with all seals, its pages allocated, of `min_bytes` to `max_bytes`.
Result<Mapping> MapSealed(const UniqueFd& fd, std::string_view what, uint64_t min_bytes,
                          uint64_t max_bytes, Writers writers, bool read_only = false);

}  // namespace gpushm
