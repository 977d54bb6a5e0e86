#include "runtime/daemon/process.h"

#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/signalfd.h>

#include <cerrno>
#include <fstream>

#include "runtime/base/clock.h"

namespace gpushm {
namespace {

constexpr int64_t kLockMs = 500;

}  // namespace

void RaiseDescriptorLimit() {
  rlimit descriptors{};
  if (getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return;
  descriptors.rlim_cur = descriptors.rlim_max;
  setrlimit(RLIMIT_NOFILE, &descriptors);
}

uint64_t MemoryLimitBytes() {
  // Of version 2 and of version 1.
  for (const char* const path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    uint64_t bytes = 0;
    if (std::ifstream(path) >> bytes) return bytes;  // "max" is no number.
  }
  return UINT64_MAX;
}

void KeepHeapSmall() {
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, 512 << 10);
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
}

UniqueFd SignalDescriptor(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  return UniqueFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

Result<UniqueFd> LockFile(const std::string& path, const Status& taken) {
  UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file) return FailSystem(errno, Concat("open ", path));
  // A process that is killed while it starts another one leaves its descriptors to that, until that
  // has begun its own program.
  const Deadline deadline = Deadline::AfterMs(kLockMs);
  while (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return FailSystem(errno, Concat("flock ", path));
    if (deadline.Passed()) return std::unexpected(taken);
    poll(nullptr, 0, 5);
  }
  return file;
}

}  // namespace gpushm
