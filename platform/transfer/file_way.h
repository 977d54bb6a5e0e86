// The choice of the method by which a file's bytes are read or written, and the reason for it.
// docs/guides/transfers.md says which method is fast where.
//
// Threads: any; only one thread at a time may use a descriptor.
#pragma once

#include <cstdint>
#include <string_view>

#include "platform/base/status.h"

namespace gpushm {

// Same numbers as gpushm_file_method.
enum class FileWay : uint32_t {
  kAuto = 0,     // Only as a request.
  kCached = 1,   // Through the page cache.
  kDirect = 2,   // O_DIRECT.
  kStream = 3,   // In order, without a known size: a pipe.
  kGds = 4,      // GPUDirect Storage.
  kAutoGds = 5,  // Only as a request: kAuto, but kGds instead of kDirect where it is available.
  kPages = 6,    // To load: the GPU fetches the pages of the page cache.
};

// Same numbers as gpushm_file_reason.
enum class FileReason : uint32_t {
  kUnknown = 0,
  kAsked = 1,
  kSmall = 2,
  kInCache = 3,     // Also files that live in memory.
  kNotInCache = 4,  // Large, and less than half of it is in the page cache.
  kLarge = 5,       // Large, and to be written.
  kRefused = 6,     // The file system does not support O_DIRECT.
  kInOrder = 7,     // Not a regular file, or not from its start.
};

// Smaller files go through the page cache, so that the next load finds them there.
inline constexpr uint64_t kDirectMinBytes = uint64_t{256} << 20;
// O_DIRECT moves whole blocks. No Linux file system needs a larger block.
inline constexpr uint64_t kDirectAlignBytes = 4096;

// Smaller files are copied: registering costs more than it saves.
inline constexpr uint64_t kPagesMinBytes = uint64_t{16} << 20;

struct FilePlan {
  FileWay way = FileWay::kCached;
  FileReason reason = FileReason::kUnknown;
  bool try_gds = false;    // With kDirect: prefer kGds if the transfer finds it available.
  bool try_pages = false;  // With kCached: the transfer may use kPages (TransferJob::try_pages).
};

// What the GPU would fetch of a file that is in the page cache.
enum class PageSize {
  kNone,   // The file system is not known to serve its files from the page cache alone.
  kSmall,  // Most folios have one page, as on tmpfs.
  kLarge,
};
PageSize PagesOf(int file);

// Whether the caller leaves the choice to gpushm.
constexpr bool IsOpen(FileWay asked) {
  return asked == FileWay::kAuto || asked == FileWay::kAutoGds;
}

// For a regular file that was opened for this transfer alone, because O_DIRECT is a flag of the
// open file description. It is set for kDirect and kGds. A requested method that is not available
// is kUnsupported. For kGds, the transfer checks the rest.
Result<FilePlan> PlanRead(int file, uint64_t size_bytes, FileWay asked);
// The file must be new, because its first block is overwritten.
Result<FilePlan> PlanWrite(int file, uint64_t size_bytes, FileWay asked);

// The method that fits a descriptor as it is; somebody else planned it.
FileWay WayOf(int file);

std::string_view NameOf(FileWay way);  // "page-cache", "direct", "stream", "gds", "pages"

}  // namespace gpushm
