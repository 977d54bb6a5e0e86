#include "platform/transfer/file_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "platform/base/memory_limit.h"
#include "platform/driver/device.h"
#include "platform/driver/stream_waits.h"
#include "platform/transfer/pinned_pool.h"

namespace gpushm {
namespace {

// From 2 GiB on, larger windows are not faster as a whole. But what fits is unregistered only when
// the content is complete for everybody, and beside helpers that is the only time for it.
constexpr uint64_t kMostWindowBytes = uint64_t{16} << 30;
constexpr uint64_t kPartOfMemory = 4;

uint64_t PageBytes() { return static_cast<uint64_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

Result<FilePages> FilePages::Map(const CudaApi& api, int file, uint64_t size_bytes) {
  const uint64_t whole = RoundUp(size_bytes, PageBytes());
  void* const memory = mmap(nullptr, whole, PROT_READ, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return FailSystem(errno, "map the file");
  return FilePages(api, static_cast<std::byte*>(memory), whole);
}

Result<void> FilePages::Register(const FileRange& range) {
  const uint64_t whole = RoundUp(range.bytes, PageBytes());
  registered_.push_back(at(range.offset));  // Nothing may throw once it is registered.
  auto done =
      api_->Check(api_->cuMemHostRegister(at(range.offset), whole, CU_MEMHOSTREGISTER_READ_ONLY),
                  Concat("cuMemHostRegister of ", whole, " bytes of a file's pages"));
  if (!done) {
    registered_.pop_back();
    return done;
  }
  registered_bytes_ += whole;
  return {};
}

// A context that ended took its registrations along. The driver then knows none at these addresses,
// which belong to this mapping until the end.
void FilePages::Unregister() {
  for (std::byte* const begin : registered_) api_->cuMemHostUnregister(begin);
  registered_.clear();
  registered_bytes_ = 0;
}

FilePages::~FilePages() {
  if (memory_ == nullptr) return;
  Unregister();
  munmap(memory_, size_bytes_);
}

uint64_t PageWindow::Most() { return PageWindowBytes(MemoryLimitBytes(), AvailableMemoryBytes()); }

uint64_t PageWindow::registered_bytes() const {
  uint64_t bytes = 0;
  for (const FilePages& file : files_) bytes += file.registered_bytes();
  return bytes;
}

void PageWindow::Unregister() {
  if (StreamWaits::Instance().AnyPending()) return;
  for (FilePages& file : files_) file.Unregister();
}

PageWindow::~PageWindow() {
  for (FilePages& file : files_) PinnedPool::Instance().Give(std::move(file));
}

uint64_t PageWindowBytes(uint64_t limit_bytes, uint64_t available_bytes) {
  return std::min({kMostWindowBytes, limit_bytes / kPartOfMemory, available_bytes / kPartOfMemory});
}

}  // namespace gpushm
