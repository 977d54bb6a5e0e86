#include "platform/transfer/file_way.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cstddef>

namespace gpushm {
namespace {

// Number of places, evenly spread over the file, at which the page cache is checked.
constexpr uint64_t kSamples = 64;

// XFS has no constant in the kernel's headers.
constexpr auto kXfsMagic = 0x58465342;

// 0: not known.
long SystemOf(int file) {
  struct statfs system{};
  return fstatfs(file, &system) == 0 ? static_cast<long>(system.f_type) : 0;
}

// How many samples of the file are in memory now.
uint64_t SamplesInMemory(int file, uint64_t size_bytes) {
  const long system = SystemOf(file);
  if (system == TMPFS_MAGIC || system == RAMFS_MAGIC || system == HUGETLBFS_MAGIC) return kSamples;
  uint64_t found = 0;
  for (uint64_t i = 0; i < kSamples; ++i) {
    std::byte byte{};
    const iovec into{&byte, 1};
    // Unlike mincore(), it also gives the correct answer for files of other users.
    if (preadv2(file, &into, 1, static_cast<off_t>(size_bytes / kSamples * i), RWF_NOWAIT) == 1) {
      ++found;
    }
  }
  return found;
}

bool SetDirect(int file, bool on) {
  const int flags = fcntl(file, F_GETFL);
  // cuFile refuses a descriptor that has O_NONBLOCK (error 5019, libcufile 1.20).
  const int wanted = on ? (flags & ~O_NONBLOCK) | O_DIRECT : flags & ~O_DIRECT;
  return flags >= 0 && fcntl(file, F_SETFL, wanted) == 0;
}

// Leaves the descriptor with O_DIRECT if the file system really supports it: some accept the flag
// and then refuse each transfer. `move` tries one block at offset 0.
template <typename Move>
bool TryDirect(int file, Move move) {
#ifdef STATX_DIOALIGN
  struct statx info{};
  if (statx(file, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
      (info.stx_mask & STATX_DIOALIGN) != 0 &&
      (info.stx_dio_offset_align == 0 || kDirectAlignBytes % info.stx_dio_offset_align != 0 ||
       info.stx_dio_mem_align > kDirectAlignBytes)) {
    return false;
  }
#endif
  if (!SetDirect(file, true)) return false;
  alignas(kDirectAlignBytes) std::array<std::byte, kDirectAlignBytes> block{};
  if (move(block.data())) return true;
  SetDirect(file, false);
  return false;
}

template <typename Move>
Result<FilePlan> Plan(int file, FileWay asked, FilePlan otherwise, Move move) {
  if (asked == FileWay::kCached) return FilePlan{FileWay::kCached, FileReason::kAsked};
  const bool open = IsOpen(asked);
  if (open && otherwise.way == FileWay::kCached) return otherwise;
  if (TryDirect(file, move)) {
    if (!open) return FilePlan{asked, FileReason::kAsked};
    return FilePlan{FileWay::kDirect, otherwise.reason, asked == FileWay::kAutoGds};
  }
  if (open) return FilePlan{FileWay::kCached, FileReason::kRefused};
  return Fail(Code::kUnsupported, "the file system does not support O_DIRECT",
              "let gpushm choose the method, or use the page cache");
}

}  // namespace

PageSize PagesOf(int file) {
  switch (SystemOf(file)) {
    case TMPFS_MAGIC:
      return PageSize::kSmall;
    // Not those of a network or a daemon, which could hang while the driver holds its locks.
    case EXT4_SUPER_MAGIC:
    case BTRFS_SUPER_MAGIC:
    case OVERLAYFS_SUPER_MAGIC:
    case kXfsMagic:
      return PageSize::kLarge;
    default:
      return PageSize::kNone;
  }
}

Result<FilePlan> PlanRead(int file, uint64_t size_bytes, FileWay asked) {
  if (asked == FileWay::kPages) return FilePlan{FileWay::kPages, FileReason::kAsked};
  FilePlan plan{FileWay::kDirect, FileReason::kNotInCache};
  const uint64_t found =
      IsOpen(asked) && size_bytes >= kPagesMinBytes ? SamplesInMemory(file, size_bytes) : 0;
  if (size_bytes < kDirectMinBytes) {
    plan = {FileWay::kCached, FileReason::kSmall};
  } else if (2 * found >= kSamples) {
    plan = {FileWay::kCached, FileReason::kInCache};
  }
  // What is missing would be read, and then be held in memory, while it is registered.
  plan.try_pages = found == kSamples && PagesOf(file) != PageSize::kNone;
  return Plan(file, asked, plan,
              [&](void* block) { return pread(file, block, kDirectAlignBytes, 0) >= 0; });
}

Result<FilePlan> PlanWrite(int file, uint64_t size_bytes, FileWay asked) {
  if (asked == FileWay::kPages) {
    return Fail(Code::kUnsupported, "the pages of a file are only for loads",
                "let gpushm choose the method, or use the page cache");
  }
  const FilePlan plan = size_bytes < kDirectMinBytes
                            ? FilePlan{FileWay::kCached, FileReason::kSmall}
                            : FilePlan{FileWay::kDirect, FileReason::kLarge};
  return Plan(file, asked, plan, [&](void* block) {
    return pwrite(file, block, kDirectAlignBytes, 0) == static_cast<ssize_t>(kDirectAlignBytes);
  });
}

FileWay WayOf(int file) {
  struct stat info{};
  if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) return FileWay::kStream;
  const int flags = fcntl(file, F_GETFL);
  return flags >= 0 && (flags & O_DIRECT) != 0 ? FileWay::kDirect : FileWay::kCached;
}

std::string_view NameOf(FileWay way) {
  switch (way) {
    case FileWay::kAuto:
    case FileWay::kAutoGds:
      return "auto";
    case FileWay::kCached:
      return "page-cache";
    case FileWay::kDirect:
      return "direct";
    case FileWay::kStream:
      return "stream";
    case FileWay::kGds:
      return "gds";
    case FileWay::kPages:
      return "pages";
  }
  return "unknown";
}

}  // namespace gpushm
