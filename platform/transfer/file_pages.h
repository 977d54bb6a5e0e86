// Files whose pages the GPU fetches: mapped, and registered for reading part by part.
//
// Invariants
//   (1) The processor never touches the mapped bytes, so a file that is cut meanwhile gives old
//       bytes and no SIGBUS (conformance case RegisteredPagesOutliveACutFile).
//   (2) A refusal of the driver leaves nothing behind.
//   (3) Nothing is unregistered while a stream of this process waits for a signal: the driver would
//       wait, too (conformance case HostPagesAreForgottenWhenAllStreamsAreDone).
//
// Threads: one at a time.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "platform/base/status.h"
#include "platform/driver/cuda_api.h"

namespace gpushm {

// A range of a file; 0 bytes: none.
struct FileRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// One file. The destructor unregisters it; no copy may use it then.
class FilePages {
 public:
  static Result<FilePages> Map(const CudaApi& api, int file, uint64_t size_bytes);

  // `range` begins at a multiple of the page size. Needs a current context.
  Result<void> Register(const FileRange& range);
  void Unregister();
  uint64_t registered_bytes() const { return registered_bytes_; }
  std::byte* at(uint64_t offset) const { return memory_ + offset; }

  FilePages(FilePages&& other) noexcept
      : api_(other.api_),
        memory_(std::exchange(other.memory_, nullptr)),
        size_bytes_(other.size_bytes_),
        registered_(std::move(other.registered_)),
        registered_bytes_(other.registered_bytes_) {}
  FilePages& operator=(FilePages&&) = delete;
  ~FilePages();

 private:
  FilePages(const CudaApi& api, std::byte* memory, uint64_t size_bytes)
      : api_(&api), memory_(memory), size_bytes_(size_bytes) {}
  const CudaApi* api_;
  std::byte* memory_;
  uint64_t size_bytes_;                   // Whole pages.
  std::vector<std::byte*> registered_{};  // Where each call began.
  uint64_t registered_bytes_ = 0;
};

// What is registered of one file after the other. Unregistering is fast only while the GPU has
// nothing to do, so it is done rarely: when the window is full, and in the destructor. No copy may
// use the pages then.
class PageWindow {
 public:
  PageWindow() : PageWindow(Most()) {}
  explicit PageWindow(uint64_t most_bytes) : most_bytes_(most_bytes) {}
  // As much as this container's memory allows: registered pages cannot leave the page cache, and
  // those that were not in it count for this container.
  static uint64_t Most();

  uint64_t most_bytes() const { return most_bytes_; }
  uint64_t registered_bytes() const;
  bool HasRoom(uint64_t part_bytes) const { return registered_bytes() + part_bytes <= most_bytes_; }
  // Stays until the window's end.
  FilePages& Add(FilePages pages) { return files_.emplace_back(std::move(pages)); }
  // Unless a stream waits.
  void Unregister();

  PageWindow(const PageWindow&) = delete;
  PageWindow& operator=(const PageWindow&) = delete;
  ~PageWindow();

 private:
  const uint64_t most_bytes_;
  std::deque<FilePages> files_;
};

// The largest window of a container with this memory limit, where so much is available.
uint64_t PageWindowBytes(uint64_t limit_bytes, uint64_t available_bytes);

}  // namespace gpushm
