#include "platform/daemon/descriptor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

// Missing in the C library's headers of Debian 12; the number is the kernel's
// (include/uapi/asm-generic/socket.h).
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace gpushm {
namespace {

// From linux/magic.h. Since Linux 6.9, pidfds are files of a file system of their own, and the
// inode's number identifies the process.
constexpr decltype(std::declval<struct statfs>().f_type) kPidfsMagic = 0x50494446;

std::string LinkOf(int fd) {
  std::array<char, 128> target{};
  const ssize_t length =
      readlink(Concat("/proc/self/fd/", fd).c_str(), target.data(), target.size());
  return {target.data(), length > 0 ? static_cast<size_t>(length) : 0};
}

// NVIDIA's character devices: /dev/nvidia0, /dev/nvidiactl (nv-chardev-numbers.h of NVIDIA's kernel
// modules). An exported allocation is an open /dev/nvidiactl, 195:255 (H200, driver 580.159.04).
constexpr uint32_t kNvidiaMajor = 195;

// What the kernel knows without asking a file system that may not answer. False: it knows nothing.
bool Look(int fd, struct statx* file) {
  return statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, file) == 0;
}

const char* TypeName(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFSOCK:
      return "a socket";
    case S_IFIFO:
      return "a pipe";
    case S_IFDIR:
      return "a folder";
    case S_IFBLK:
      return "a block device";
    case S_IFCHR:
      return "a character device of another driver";
    case S_IFLNK:
      return "a symbolic link";
    case S_IFREG:
      return "a file";
    default:
      return "a kernel object";
  }
}

}  // namespace

// Reads "Pid:" of /proc/self/fdinfo.
int PidOf(int pidfd) {
  const UniqueFd file(open(Concat("/proc/self/fdinfo/", pidfd).c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 512> text{};
  const ssize_t length = file ? read(file.get(), text.data(), text.size()) : -1;
  const std::string_view all(text.data(), length > 0 ? static_cast<size_t>(length) : 0);
  constexpr std::string_view kKey = "\nPid:\t";
  const size_t at = all.find(kKey);
  int pid = 0;
  if (at == std::string_view::npos) return 0;
  std::from_chars(all.data() + at + kKey.size(), all.data() + all.size(), pid);
  return pid;
}

bool IsPidfd(int fd) {
  const std::string link = LinkOf(fd);
  return link == "anon_inode:[pidfd]" || link.starts_with("pidfd:[");
}

bool IsMemfd(int fd) { return fcntl(fd, F_GET_SEALS) >= 0; }

MemoryKind MemoryKind::Of(const std::string& simulated_state) {
  if (simulated_state.empty()) return {};
  mkdir(simulated_state.c_str(), 0777);  // As the simulated driver does at its first use.
  struct stat folder{};
  if (stat(simulated_state.c_str(), &folder) != 0) return {};
  return {.simulated = folder.st_dev};
}

Result<void> CheckMemory(int fd, const MemoryKind& kind) {
  struct statx file{};
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || !Look(fd, &file)) return FailSystem(errno, "examine a memory descriptor");
  const bool holds_nothing = (flags & O_PATH) != 0;
  const bool real = S_ISCHR(file.stx_mode) && file.stx_rdev_major == kNvidiaMajor;
  const bool simulated = S_ISREG(file.stx_mode) && kind.simulated &&
                         makedev(file.stx_dev_major, file.stx_dev_minor) == *kind.simulated;
  if (!holds_nothing && (real || simulated)) return {};
  const char* const type = holds_nothing ? "a path (O_PATH)"
                           : IsPidfd(fd) ? "a pidfd"
                                         : TypeName(file.stx_mode);
  return Fail(Code::kInvalidArgument,
              Concat("invalid memory descriptor: it is ", type, " (", LinkOf(fd), ")"),
              "send the descriptor that cuMemExportToShareableHandle gives for "
              "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR");
}

bool MayHoldUpItsCloser(int fd) {
  struct statx file{};
  if (IsMemfd(fd) || IsPidfd(fd)) return false;
  if (!Look(fd, &file)) return true;
  // Anonymous inodes have no type.
  const mode_t type = file.stx_mode & S_IFMT;
  return type != S_IFIFO && type != S_IFCHR && type != 0;
}

dev_t FileSystemOf(int fd) {
  struct statx file{};
  return Look(fd, &file) ? makedev(file.stx_dev_major, file.stx_dev_minor) : 0;
}

UniqueFd PeerProcess(int socket) {
  int pidfd = -1;
  socklen_t size = sizeof pidfd;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) != 0) return {};
  return UniqueFd(pidfd);
}

bool HasEnded(const UniqueFd& pidfd) {
  pollfd poller{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  return poll(&poller, 1, 0) == 1;
}

Same IsSameProcess(const UniqueFd& a, const UniqueFd& b) {
  struct statfs file_system{};
  struct stat first{};
  struct stat second{};
  if (fstatfs(a.get(), &file_system) == 0 && file_system.f_type == kPidfsMagic &&
      fstat(a.get(), &first) == 0 && fstat(b.get(), &second) == 0) {
    return first.st_ino == second.st_ino ? Same::kYes : Same::kNo;
  }
  const int pid = PidOf(a.get());
  const int other = PidOf(b.get());
  if (pid <= 0 || other <= 0) return Same::kUnknown;
  return pid == other ? Same::kYes : Same::kNo;
}

}  // namespace gpushm
