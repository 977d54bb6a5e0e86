// For tests: a FUSE file system with one file, whose daemon stops answering at a chosen request. It
// represents a network volume whose server is dead, and a descriptor that a hostile container
// sends.
//
// The daemon is a separate process that speaks the kernel's raw protocol (linux/fuse.h). The
// destructor aborts the connection, which frees every thread that waits for an answer, also those
// that SIGKILL does not end (state D). If the test itself is killed, the daemon is killed with it,
// and the kernel aborts the connection.
//
// Mount() moves the calling thread into a mount namespace of its own, once. Threads and processes
// that it starts later see the mount; nothing else on the machine does. Call it from the thread
// that starts the processes under test, and before the test opens anything whose closing matters
// (the daemon inherits copies of all open descriptors).
//
// Threads: one.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm::testing {

// Which requests for the file get no answer. Others are answered as usual.
enum class HangAt {
  kLookup,       // Any path lookup of the file: open, stat.
  kGetattr,      // fstat, stat; the path is found.
  kOpen,         // open, after the path was found.
  kRead,         // read, pread, a page fault in a mapping.
  kFlush,        // close. SIGKILL does not end it; exit and exec wait in it, too.
  kAllOnceOpen,  // Everything after the first open, which is answered.
};

class HungFuse {
 public:
  // The reason why this machine cannot mount FUSE, for GTEST_SKIP; nullopt if it can.
  static std::optional<std::string> MissingHere();

  // Mounts it at `folder`, which must exist. The file has `size_bytes` bytes, all of them zero.
  static Result<HungFuse> Mount(const std::string& folder, HangAt hang_at,
                                uint64_t size_bytes = uint64_t{4} << 20);
  HungFuse(HungFuse&& other) noexcept;
  HungFuse& operator=(HungFuse&&) = delete;
  ~HungFuse();

  // The file's name in `folder`, and its whole path.
  static constexpr char kFile[] = "file";
  std::string path() const { return folder_ + "/" + kFile; }

  // Opens the file and returns its descriptor, which this object owns: closing it may hang, so it
  // is closed after the connection was aborted. The test may send it or dup() it. Do not call this
  // where LOOKUP or OPEN hang. kSystem.
  Result<int> Open(int flags);

  // Waits until `count` requests have no answer. Returns false after `wait_ms`.
  bool WaitUntilHung(int count = 1, int64_t wait_ms = 20'000) const;

  // Makes the daemon answer everything from now on, and what it has kept back.
  void Answer();

  // A copy of the /dev/fuse that the daemon serves. The connection lives while a copy is open, even
  // if the daemon does not. kSystem.
  Result<UniqueFd> Device() const;

  // Sends SIGKILL to the daemon, which closes its device.
  void KillDaemon();

  // Whether somebody has ended the connection.
  bool HasEnded() const;

  // Ends the connection: every hanging call fails with ECONNABORTED or ENOTCONN. May be called
  // again.
  void Abort();

 private:
  HungFuse() = default;
  Result<void> MountAndServe(HangAt hang_at, uint64_t size_bytes);

  std::string folder_;
  pid_t daemon_ = -1;
  int device_ = -1;                        // Its number in the daemon.
  std::atomic<int>* kept_back_ = nullptr;  // Requests without an answer; shared with the daemon.
  UniqueFd control_;                       // To the daemon: one byte ends the hang.
  unsigned connection_ = 0;
  std::vector<UniqueFd> files_;
};

}  // namespace gpushm::testing
