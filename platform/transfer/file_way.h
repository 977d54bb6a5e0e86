// How the bytes of a file are read or written: the choice, and why it was taken.
// docs/guides/transfers.md tells which is fast where.
//
// Threads: any; a descriptor is one thread's at a time.
#pragma once

#include <cstdint>
#include <string_view>

#include "platform/base/status.h"

namespace gpushm {

// Numbers as gpushm_file_way.
enum class FileWay : uint32_t {
  kAuto = 0,     // Asked for only.
  kCached = 1,   // Through the page cache.
  kDirect = 2,   // O_DIRECT.
  kStream = 3,   // In order, with no size known: a pipe.
  kGds = 4,      // GPUDirect Storage.
  kAutoGds = 5,  // Asked for only: kAuto, and kGds for what would be kDirect, where it can be had.
};

// Numbers as gpushm_file_reason.
enum class FileReason : uint32_t {
  kUnknown = 0,
  kAsked = 1,
  kSmall = 2,
  kInCache = 3,     // Also files that live in memory.
  kNotInCache = 4,  // Large, and the page cache has less than half of it.
  kLarge = 5,       // To write.
  kRefused = 6,     // The file system has no O_DIRECT.
  kInOrder = 7,     // No file, or not from its start.
};

// Files below go through the page cache: whoever loads next finds them there.
inline constexpr uint64_t kDirectMinBytes = uint64_t{256} << 20;
// O_DIRECT moves whole blocks. No file system of Linux wants more.
inline constexpr uint64_t kDirectAlignBytes = 4096;

struct FilePlan {
  FileWay way = FileWay::kCached;
  FileReason reason = FileReason::kUnknown;
  bool try_gds = false;  // With kDirect: kGds is better, if the transfer finds that it can be had.
};

// Whether the way is left to us.
constexpr bool IsOpen(FileWay asked) {
  return asked == FileWay::kAuto || asked == FileWay::kAutoGds;
}

// For a regular file, opened for this transfer alone: O_DIRECT is a flag of the open file
// description, set where that is the way, and for kGds. A way that was asked for and cannot be had
// is kUnsupported; of kGds the transfer finds out the rest.
Result<FilePlan> PlanRead(int file, uint64_t size_bytes, FileWay asked);
// The file is new: its first block is written over.
Result<FilePlan> PlanWrite(int file, uint64_t size_bytes, FileWay asked);

// The way of a descriptor as it is, which somebody else planned.
FileWay WayOf(int file);

std::string_view NameOf(FileWay way);  // "page-cache", "direct", "stream", "gds"

}  // namespace gpushm
