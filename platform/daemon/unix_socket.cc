#include "platform/daemon/unix_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace gpushm {
namespace {

constexpr int kBacklog = 64;
// In the same folder as the final name, so that the rename stays in one file system.
// The file's name with a dot before it: the kubelet registers whatever socket appears in its folder
// of plugin registrations, unless its name begins with a dot.
std::string TemporaryOf(const std::string& path) {
  const size_t name = path.rfind('/') + 1;  // 0 if there is no slash.
  return path.substr(0, name) + "." + path.substr(name);
}

std::optional<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return std::nullopt;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

UniqueFd NewSocket() {
  return UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

int64_t Nanoseconds(const statx_timestamp& time) {
  return time.tv_sec * 1'000'000'000 + int64_t{time.tv_nsec};
}

}  // namespace

std::optional<FileId> Identify(const std::string& path) {
  struct statx file{};
  const unsigned wanted = STATX_INO | STATX_CTIME | STATX_BTIME;
  if (statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, wanted, &file) != 0) return std::nullopt;
  const bool knows_birth = (file.stx_mask & STATX_BTIME) != 0;
  return FileId{.device = (uint64_t{file.stx_dev_major} << 32) | file.stx_dev_minor,
                .inode = file.stx_ino,
                .born_ns = Nanoseconds(knows_birth ? file.stx_btime : file.stx_ctime)};
}

bool SomeoneAccepts(const std::string& path) {
  const std::optional<sockaddr_un> address = AddressOf(path);
  const UniqueFd probe = NewSocket();
  if (!address || !probe) return false;
  // EAGAIN: the socket's queue of connections is full, so a process listens there.
  return connect(probe.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0 ||
         errno == EAGAIN;
}

Result<void> ListeningSocket::CheckPath(const std::string& path) {
  constexpr size_t kMaxBytes = sizeof(sockaddr_un::sun_path) - 2;  // One for the dot.
  if (path.size() <= kMaxBytes) return {};
  return Fail(Code::kInvalidArgument, Concat("socket path ", path, " has ", path.size(), " bytes"),
              Concat("use a path of at most ", kMaxBytes, " bytes"));
}

Result<ListeningSocket> ListeningSocket::Bind(const std::string& path) {
  const Result<void> fits = CheckPath(path);
  if (!fits) return std::unexpected(fits.error());
  const std::string temporary = TemporaryOf(path);
  const std::optional<sockaddr_un> address = AddressOf(temporary);
  UniqueFd fd = NewSocket();
  if (!fd) return FailSystem(errno, Concat("socket for ", path));
  unlink(temporary.c_str());
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0)
    return FailSystem(errno, Concat("bind ", temporary));
  // Only the kubelet's user may connect: a client can request any container's allocation.
  const bool ready = chmod(temporary.c_str(), 0600) == 0 && listen(fd.get(), kBacklog) == 0 &&
                     rename(temporary.c_str(), path.c_str()) == 0;
  if (!ready) {
    const int error = errno;
    unlink(temporary.c_str());
    return FailSystem(error, Concat("listen at ", path));
  }
  // After the rename, which changes the file. If the name is gone already, the checks below see it.
  const FileId id = Identify(path).value_or(FileId{});
  return ListeningSocket(std::move(fd), path, id);
}

ListeningSocket::~ListeningSocket() {
  if (fd_ && !path_.empty() && InPlace()) unlink(path_.c_str());
}

UniqueFd ListeningSocket::Accept() const {
  return UniqueFd(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

}  // namespace gpushm
