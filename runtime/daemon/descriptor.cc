#include "runtime/daemon/descriptor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <string>
#include <string_view>
#include <utility>

// Younger than the C library's headers of Debian 12; the number is the kernel's
// (include/uapi/asm-generic/socket.h).
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace gpushm {
namespace {

// Of linux/magic.h. Where pidfds are files of a file system of their own (Linux 6.9), the inode's
// number is the process's alone.
constexpr decltype(std::declval<struct statfs>().f_type) kPidfsMagic = 0x50494446;

std::string LinkOf(int fd) {
  std::array<char, 128> target{};
  const ssize_t length =
      readlink(Concat("/proc/self/fd/", fd).c_str(), target.data(), target.size());
  return {target.data(), length > 0 ? static_cast<size_t>(length) : 0};
}

// Nullptr: it may be GPU memory.
const char* KindOfForeign(int fd, mode_t mode, int flags) {
  if ((flags & O_PATH) != 0) return "a path (O_PATH), which holds nothing";
  if (IsPidfd(fd)) return "a pidfd";
  switch (mode & S_IFMT) {
    case S_IFSOCK:
      return "a socket";
    case S_IFIFO:
      return "a pipe";
    case S_IFDIR:
      return "a folder";
    case S_IFBLK:
      return "a block device";
    case S_IFLNK:
      return "a symbolic link";
    default:  // Anonymous inodes have no type, or that of a file.
      return nullptr;
  }
}

}  // namespace

// "Pid:" of /proc/self/fdinfo.
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

Result<void> CheckMemory(int fd) {
  struct stat file{};
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fstat(fd, &file) != 0) return FailSystem(errno, "stat a descriptor of memory");
  const char* const foreign = KindOfForeign(fd, file.st_mode, flags);
  if (foreign == nullptr) return {};
  return Fail(Code::kInvalidArgument,
              Concat("descriptor: ", LinkOf(fd), " is ", foreign, ", expected is GPU memory"),
              "send what cuMemExportToShareableHandle gives for "
              "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR");
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
