// Whether a file is still the one that was opened, with the bytes that it had.
// Threads: pure functions; any thread.
#pragma once

#include <sys/stat.h>

#include <cstdint>

#include "platform/base/status.h"

namespace gpushm {

// A write to the file, and another file in its place, give it another stamp.
struct FileStamp {
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t size_bytes = 0;
  int64_t modified_ns = 0;  // Of CLOCK_REALTIME, as its file system counts.
  int64_t changed_ns = 0;

  static FileStamp Of(const struct stat& info) {
    const auto ns = [](const timespec& time) {
      return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
    };
    return {.device = info.st_dev,
            .inode = info.st_ino,
            .size_bytes = info.st_size,
            .modified_ns = ns(info.st_mtim),
            .changed_ns = ns(info.st_ctim)};
  }
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

// File systems take the time from a clock that stands still for a tick of the kernel, 10 ms where
// it is longest (CONFIG_HZ=100). Two writes within one tick leave the same stamp.
inline constexpr int64_t kStampTickNs = 20'000'000;

// fstat of what is to be read next. Of a file that changed within the last tick, it waits until the
// tick has passed, so that a write after this call changes the stamp. `name` is for messages.
Result<struct stat> StatBeforeReading(int fd, std::string_view name);

// How long a file must not have changed if nothing says how long it is: a client of NFS may see a
// change this late (acregmin of nfs(5)), and writers pause less.
inline constexpr int64_t kSettleMs = 3000;
// Why its load is not complete yet, and how to save that wait. kBusy.
Status NotSettled(std::string_view name);

}  // namespace gpushm
