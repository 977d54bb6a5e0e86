#include "sidecar/broker/volume_file.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace gpushm::broker {
namespace {

// Attempts at openat2, which fails with EAGAIN if something is renamed during the lookup. A lease
// on the file also leads to EAGAIN.
constexpr int kAttempts = 16;

// The file, or the error.
struct Opened {
  UniqueFd file;
  int error = 0;
  bool link_refused = false;  // By hand: a part of the path is a symbolic link.
};

Opened Take(int descriptor) {
  Opened opened{.file = UniqueFd(descriptor)};
  if (descriptor < 0) opened.error = errno;
  return opened;
}

bool IsLink(int folder, const std::string& part) {
  struct stat info{};
  return fstatat(folder, part.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(info.st_mode);
}

// Opens the path part by part. No part may be a symbolic link, neither when it is checked nor when
// it is opened.
Opened OpenByHand(int folder, const std::string& path, int flags) {
  UniqueFd below;
  for (size_t begin = 0;;) {
    const size_t slash = path.find('/', begin);
    const bool last = slash == std::string::npos;
    const std::string part = path.substr(begin, last ? slash : slash - begin);
    const int in = below ? below.get() : folder;
    if (part == "..") return {.file = UniqueFd(), .error = EXDEV, .link_refused = false};
    Opened opened = Take(
        openat(in, part.c_str(), (last ? flags : O_PATH | O_DIRECTORY) | O_NOFOLLOW | O_CLOEXEC));
    if ((opened.error == ELOOP || opened.error == ENOTDIR) && IsLink(in, part)) {
      opened.link_refused = true;
    }
    if (last || !opened.file) return opened;
    below = std::move(opened.file);
    begin = slash + 1;
  }
}

Opened OpenIn(int folder, const std::string& path, int flags, Follow follow) {
  if (follow == Follow::kByHand) return OpenByHand(folder, path, flags);
  open_how how{};
  how.flags = static_cast<uint64_t>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
  Opened opened;
  for (int i = 0; i < kAttempts; ++i) {
    opened = Take(static_cast<int>(syscall(SYS_openat2, folder, path.c_str(), &how, sizeof how)));
    if (opened.error != EAGAIN && opened.error != EINTR) break;
  }
  // ENOSYS: before Linux 5.6. EPERM: a seccomp profile that does not know the call.
  if (opened.error != ENOSYS && opened.error != EPERM) return opened;
  return OpenByHand(folder, path, flags);
}

std::unexpected<Status> Refused(const Opened& opened, const std::string& whole,
                                const Opened& seen) {
  if (opened.error == ENOENT) return Fail(Code::kNotFound, Concat("no file ", whole));
  if (opened.link_refused) {
    return Fail(Code::kUnsupported,
                Concat("open ", whole,
                       ": a part of the path is a symbolic link, "
                       "and without openat2 the broker cannot ensure that it stays in its volume"),
                "use Linux 5.6 or later with a seccomp profile that allows openat2, "
                "or a path without symbolic links: file: models/weights.bin");
  }
  if (opened.error == EAGAIN) {
    return Fail(Code::kContended,
                Concat("open ", whole, ": a process has a lease on it (F_SETLEASE)"),
                "it is opened once that process gives up the lease, or the kernel takes it away");
  }
  struct stat info{};
  const bool known = seen.file && fstat(seen.file.get(), &info) == 0;
  return FailSystem(opened.error,
                    known ? Concat("open ", whole, " (uid ", info.st_uid, ", gid ", info.st_gid,
                                   ", mode ", std::oct, info.st_mode & 07777u, std::dec,
                                   ") as uid ", getuid(), ", gid ", getgid())
                          : Concat("open ", whole),
                    "allow the sidecar's user or group to read it");
}

}  // namespace

Result<UniqueFd> OpenFileOf(const std::string& folder, const std::string& path, Follow follow) {
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  constexpr int kLook = O_PATH | O_CLOEXEC;  // Needs no read permission.
  if (folder.empty()) {
    Opened opened = Take(open(path.c_str(), kFlags));
    if (opened.file) return std::move(opened.file);
    return Refused(opened, path, Take(open(path.c_str(), kLook)));
  }
  const std::string whole = Concat(folder, '/', path);
  const Opened root = Take(open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root.file) return Refused(root, folder, {});
  Opened opened = OpenIn(root.file.get(), path, kFlags, follow);
  if (opened.file) return std::move(opened.file);
  return Refused(opened, whole, OpenIn(root.file.get(), path, kLook, follow));
}

}  // namespace gpushm::broker
