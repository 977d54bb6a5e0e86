// For tests: a FUSE file system with one file, whose daemon stops answering at a chosen request. It
// stands for a network volume whose server is dead, and for a descriptor that a hostile container
// hands over.
//
// The daemon is a process of its own that speaks the kernel's raw protocol (linux/fuse.h). The
// destructor aborts the connection, which frees every thread that waits for an answer, also those
// that SIGKILL does not end (state D). If the test itself is killed, the daemon is killed with it,
// and the kernel aborts the connection.
//
// Mount() moves the calling thread into a mount namespace of its own, once. Threads and processes
// that it starts later see the mount; nothing else on the machine does. Call it from the thread
// that starts the processes under test, and before the test opens anything whose end matters (the
// daemon inherits copies of all open descriptors).
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

// Which requests for the file stay without an answer. Others are answered as usual.
enum class HangAt {
  kLookup,       // Any path to the file: open, stat.
  kGetattr,      // fstat, stat; the path is found.
  kOpen,         // open, after the path was found.
  kRead,         // read, pread, a page fault in a mapping.
  kFlush,        // close. SIGKILL does not end it; exit and exec wait in it as well.
  kAllOnceOpen,  // Everything after the first open was answered.
};

class HungFuse {
 public:
  // Why this machine cannot mount FUSE, for GTEST_SKIP; nullopt: it can.
  static std::optional<std::string> MissingHere();

  // Mounts it at `folder`, which exists. The file has `size_bytes` bytes, all of them zero.
  static Result<HungFuse> Mount(const std::string& folder, HangAt hang_at,
                                uint64_t size_bytes = uint64_t{4} << 20);
  HungFuse(HungFuse&& other) noexcept;
  HungFuse& operator=(HungFuse&&) = delete;
  ~HungFuse();

  // The file's name in `folder`, and its whole path.
  static constexpr char kFile[] = "file";
  std::string path() const { return folder_ + "/" + kFile; }

  // Opens the file and returns its descriptor, which this object owns: closing it may hang, so it
  // is closed after the connection was aborted. Send it, or dup() it, as the test needs. Do not
  // call it where LOOKUP or OPEN hang. kSystem.
  Result<int> Open(int flags);

  // Waits until `count` requests are without an answer. False: not within `wait_ms`.
  bool WaitUntilHung(int count = 1, int64_t wait_ms = 20'000) const;

  // The daemon answers everything from now on, and what it has kept back.
  void Answer();

  // A copy of the /dev/fuse that the daemon serves: while one is open the connection lives, whether
  // its daemon does or not. kSystem.
  Result<UniqueFd> Device() const;

  // SIGKILL for the daemon, whose device is closed with it.
  void KillDaemon();

  // Whether the connection was ended, by whomever.
  bool HasEnded() const;

  // Ends the connection: all that hangs fails with ECONNABORTED or ENOTCONN. May be called again.
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
