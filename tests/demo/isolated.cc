#include "tests/demo/isolated.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>

namespace gpushm::demo {
namespace {

constexpr int kNamespaces = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWUTS;
// The child writes this before its program takes over the same channel.
constexpr char kReady[] = "isolated\n";

[[noreturn]] void ChildFails(int channel, const char* what) {
  std::array<char, 256> text{};
  const int length = std::snprintf(text.data(), text.size(), "failed %s: errno %d\n", what, errno);
  [[maybe_unused]] const ssize_t n = write(channel, text.data(), static_cast<size_t>(length));
  _exit(125);
}

bool WriteFile(const char* path, const std::string& text) {
  const UniqueFd file(open(path, O_WRONLY | O_CLOEXEC));
  return file && write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

void EnterNamespaces(int channel) {
  const uid_t uid = geteuid();
  const gid_t gid = getegid();
  if (unshare(kNamespaces | (uid != 0 ? CLONE_NEWUSER : 0)) != 0) ChildFails(channel, "unshare");
  if (uid == 0) return;
  if (!WriteFile("/proc/self/setgroups", "deny") ||
      !WriteFile("/proc/self/uid_map", Concat("0 ", uid, " 1")) ||
      !WriteFile("/proc/self/gid_map", Concat("0 ", gid, " 1"))) {
    ChildFails(channel, "user namespace");
  }
}

void MountView(int channel, const char* socket_folder, const char* view) {
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) ChildFails(channel, "mount");
  if (mount(socket_folder, view, nullptr, MS_BIND, nullptr) != 0) ChildFails(channel, "bind");
  const unsigned long kept = MS_NOSUID | MS_NODEV;  // A user namespace may not clear these flags.
  if (mount(nullptr, view, nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY | kept, nullptr) != 0 &&
      mount(nullptr, view, nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) != 0) {
    ChildFails(channel, "read-only mount");
  }
  if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0) {
    ChildFails(channel, "mount /proc");
  }
}

// Runs in a fork of this program: makes the namespaces, then their PID 1, which runs the program.
[[noreturn]] void RunChild(int channel, int self, const char* socket_folder, const char* view,
                           char* const* arguments) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  EnterNamespaces(channel);
  const pid_t inner = fork();
  if (inner < 0) ChildFails(channel, "fork");
  if (inner > 0) {
    close(channel);
    int status = 0;
    while (waitpid(inner, &status, 0) < 0 && errno == EINTR) {
    }
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 126);
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  MountView(channel, socket_folder, view);
  if (dup2(channel, STDIN_FILENO) < 0 || dup2(channel, STDOUT_FILENO) < 0) {
    ChildFails(channel, "dup2");
  }
  [[maybe_unused]] const ssize_t n = write(channel, kReady, sizeof kReady - 1);
  syscall(SYS_execveat, self, "", arguments, environ, AT_EMPTY_PATH);
  ChildFails(channel, "execveat");
}

}  // namespace

Result<Isolated> Isolated::Start(const std::vector<std::string>& arguments,
                                 const std::string& socket_folder, const std::string& view) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return FailSystem(errno, "socketpair");
  }
  UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  const UniqueFd self(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  std::vector<char*> words = {const_cast<char*>("isolated")};
  for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid < 0) return FailSystem(errno, "fork");
  if (pid == 0) {
    RunChild(theirs.get(), self.get(), socket_folder.c_str(), view.c_str(), words.data());
  }
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  Isolated child(pid, std::move(pidfd), std::move(ours));
  const Result<std::string> first = child.Hear(Deadline::AfterMs(10'000));
  if (!first) return std::unexpected(first.error());
  if (*first != "isolated") {
    return Fail(Code::kDenied, Concat("namespaces: ", *first),
                "run as root, or allow user namespaces: sysctl "
                "user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns");
  }
  return child;
}

Isolated::Isolated(pid_t pid, UniqueFd pidfd, UniqueFd channel)
    : pid_(pid), pidfd_(std::move(pidfd)), channel_(std::move(channel)) {}

Isolated::Isolated(Isolated&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::move(other.pidfd_)),
      channel_(std::move(other.channel_)),
      unread_(std::move(other.unread_)) {}

Isolated& Isolated::operator=(Isolated&& other) noexcept {
  if (this != &other) {
    Kill();
    pid_ = std::exchange(other.pid_, -1);
    pidfd_ = std::move(other.pidfd_);
    channel_ = std::move(other.channel_);
    unread_ = std::move(other.unread_);
  }
  return *this;
}

Result<void> Isolated::Say(const std::string& line) {
  const std::string text = line + "\n";
  if (send(channel_.get(), text.data(), text.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(text.size())) {
    return Fail(Code::kPeerDied, "the isolated process does not read its input");
  }
  return {};
}

Result<std::string> Isolated::Hear(const Deadline& deadline) {
  for (;;) {
    if (const size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    pollfd poller{.fd = channel_.get(), .events = POLLIN, .revents = 0};
    if (poll(&poller, 1, deadline.RemainingMs()) <= 0) {
      if (!deadline.Passed()) continue;
      return Fail(Code::kTimeout, "the isolated process printed nothing in time");
    }
    std::array<char, 4096> bytes{};
    const ssize_t count = read(channel_.get(), bytes.data(), bytes.size());
    if (count <= 0) return Fail(Code::kPeerDied, "the isolated process ended");
    unread_.append(bytes.data(), static_cast<size_t>(count));
  }
}

void Isolated::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);  // Its PID 1 follows by PR_SET_PDEATHSIG.
  waitpid(std::exchange(pid_, -1), nullptr, 0);
}

Result<int> Isolated::Wait(const Deadline& deadline) {
  pollfd poller{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  if (poll(&poller, 1, deadline.RemainingMs()) <= 0) {
    return Fail(Code::kTimeout, "the isolated process did not end in time");
  }
  int status = 0;
  waitpid(std::exchange(pid_, -1), &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace gpushm::demo
