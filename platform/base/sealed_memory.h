// Memory that two processes share through a sealed memfd: its owner types, and the checks before a
// memfd from another process is mapped. Without these checks, a file that its maker can shrink, or
// that has unallocated pages, kills its readers by SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
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
  // Leaves the memory mapped until the process ends.
  void Keep() { address_ = nullptr; }
  // Gives the memory back but keeps the addresses. From then on they read as zeros.
  void Blank() noexcept;

 private:
  void* address_ = nullptr;
  size_t bytes_ = 0;
};

struct WritableSegment {
  UniqueFd fd;
  Mapping mapping;
};

// Who may write: only the maker, everybody who receives the descriptor, or nobody any more.
enum class Writers { kMaker, kAll, kNobody };

// Makes a memfd of that size, allocates its pages (so that no SIGBUS can follow), maps it for
// writing and seals it. Afterwards nobody, not even root, can resize it. With kMaker, nobody else
// can write it or map it for writing either. `what` names it in errors, for example "registry".
Result<WritableSegment> MakeSealed(std::string_view what, uint64_t bytes, Writers writers);

// Makes a memfd with these bytes, which nobody can change any more.
Result<UniqueFd> SealBytes(std::string_view what, std::span<const std::byte> bytes);
// The same in two steps, for two processes: the second one fills the memory, and pays for it.
Result<UniqueFd> MakeEmpty(std::string_view what);
Result<void> FillAndSeal(const UniqueFd& empty, std::string_view what,
                         std::span<const std::byte> bytes);

// What MapSealed accepts, without mapping it: the number of its bytes.
Result<uint64_t> CheckSealed(int fd, std::string_view what, uint64_t min_bytes, uint64_t max_bytes,
                             Writers writers);

// Maps a received descriptor: for writing with kAll (unless `read_only`), otherwise for reading.
// Accepts only a memfd on tmpfs with all seals, allocated pages, and a size of `min_bytes` to
// `max_bytes`. Anything else could kill the process that touches it or, with kMaker and kNobody,
// change under its reader. The seals are read first: on any other descriptor, also on one of a file
// system that does not respond, that fails at once, whereas fstat could block.
Result<Mapping> MapSealed(const UniqueFd& fd, std::string_view what, uint64_t min_bytes,
                          uint64_t max_bytes, Writers writers, bool read_only = false);

}  // namespace gpushm
