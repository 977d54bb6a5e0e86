#include "platform/daemon/process.h"

#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include "platform/base/clock.h"

namespace gpushm {
namespace {

constexpr int64_t kLockMs = 500;

struct SystemCall {
  long number;
  std::string_view name;
};

// In these system calls a thread waits for other threads, for time or for events, and SIGKILL ends
// the wait.
constexpr std::array kHarmless = {
    SYS_futex,     SYS_ppoll,           SYS_epoll_pwait,     SYS_pselect6,
    SYS_nanosleep, SYS_clock_nanosleep, SYS_restart_syscall, SYS_rt_sigtimedwait,
#ifdef SYS_poll
    SYS_poll,      SYS_epoll_wait,      SYS_select,
#endif
};

// Names of system calls that are known to hang; others are shown by number.
constexpr std::array kNames = {
    SystemCall{SYS_close, "close"},
    SystemCall{SYS_ioctl, "ioctl"},
    SystemCall{SYS_openat, "openat"},
    SystemCall{SYS_openat2, "openat2"},
    SystemCall{SYS_fstat, "fstat"},
    SystemCall{SYS_statx, "statx"},
    SystemCall{SYS_read, "read"},
    SystemCall{SYS_pread64, "pread64"},
    SystemCall{SYS_write, "write"},
    SystemCall{SYS_pwrite64, "pwrite64"},
    SystemCall{SYS_munmap, "munmap"},
    SystemCall{SYS_newfstatat, "newfstatat"},
    SystemCall{SYS_io_getevents, "io_getevents"},
    SystemCall{SYS_execve, "execve"},
    SystemCall{SYS_exit_group, "exit_group"},
};

std::string FirstLine(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

// Nothing if the thread runs, or waits in a harmless system call.
std::optional<HeldThread> LookAtThread(const std::string& folder) {
  HeldThread thread;
  // "PID (name) S ...": the name itself may contain parentheses.
  const std::string stat = FirstLine(folder + "/stat");
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= stat.size()) return std::nullopt;
  const char state = stat[name_end + 2];
  if (state != 'S' && state != 'D') return std::nullopt;
  std::from_chars(stat.data(), stat.data() + stat.size(), thread.tid);
  thread.name = FirstLine(folder + "/comm");
  thread.kernel_function = FirstLine(folder + "/wchan");
  const std::string call = FirstLine(folder + "/syscall");  // "NUMBER ARGUMENTS", "running", "-1".
  long number = -1;
  const bool known =
      std::from_chars(call.data(), call.data() + call.size(), number).ec == std::errc();
  if (known && number >= 0) {
    if (std::ranges::find(kHarmless, number) != kHarmless.end()) return std::nullopt;
    const auto named = std::ranges::find(kNames, number, &SystemCall::number);
    thread.system_call = named != kNames.end() ? std::string(named->name) : std::to_string(number);
  } else if (state != 'D') {
    return std::nullopt;
  }
  return thread;
}

}  // namespace

std::vector<HeldThread> HeldThreads(pid_t process) {
  std::vector<HeldThread> held;
  const pid_t self = gettid();
  std::error_code error;
  namespace fs = std::filesystem;
  for (fs::directory_iterator entry(Concat("/proc/", process, "/task"), error), end;
       !error && entry != end; entry.increment(error)) {
    const std::optional<HeldThread> thread = LookAtThread(entry->path());
    if (thread && thread->tid != self) held.push_back(*thread);
  }
  return held;
}

void RaiseDescriptorLimit() {
  rlimit descriptors{};
  if (getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return;
  descriptors.rlim_cur = descriptors.rlim_max;
  setrlimit(RLIMIT_NOFILE, &descriptors);
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

Result<UniqueFd> TryLockFile(const std::string& path) {
  UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file) return FailSystem(errno, Concat("open ", path));
  if (flock(file.get(), LOCK_EX | LOCK_NB) == 0) return file;
  if (errno != EWOULDBLOCK) return FailSystem(errno, Concat("flock ", path));
  return Fail(Code::kBusy, Concat(path, " is locked"));
}

bool IsLocked(const std::string& path) {
  const Result<UniqueFd> file = TryLockFile(path);
  return !file && file.error().code() == Code::kBusy;
}

Result<UniqueFd> LockFile(const std::string& path, const Status& taken) {
  // A process that is killed while it starts another one leaves its descriptors to the new one
  // until that executes its own program.
  const Deadline deadline = Deadline::AfterMs(kLockMs);
  for (;;) {
    Result<UniqueFd> file = TryLockFile(path);
    if (file || file.error().code() != Code::kBusy) return file;
    if (deadline.Passed()) return std::unexpected(taken);
    poll(nullptr, 0, 5);
  }
}

std::expected<pid_t, int> StartProgram(std::vector<std::string> words,
                                       std::initializer_list<std::pair<int, int>> descriptors) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // For the same number, dup2 also clears close-on-exec (glibc 2.29).
  for (const auto& [ours, theirs] : descriptors) {
    posix_spawn_file_actions_adddup2(&actions, ours, theirs);
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t pid = -1;
  const int error =
      posix_spawnp(&pid, arguments.front(), &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return std::unexpected(error);
  return pid;
}

std::string HowItEnded(int status) {
  return WIFSIGNALED(status) ? Concat("ended by signal ", WTERMSIG(status))
                             : Concat("ended with exit code ", WEXITSTATUS(status));
}

}  // namespace gpushm
