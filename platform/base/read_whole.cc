#include "platform/base/read_whole.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "platform/base/unique_fd.h"

namespace gpushm {

Result<std::string> ReadWhole(const std::string& path, size_t max_bytes) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file) {
    if (errno == ELOOP) return Fail(Code::kCorrupt, Concat(path, " is a symbolic link"));
    if (errno == ENOENT)
      return Fail(Code::kNotFound, Concat("open ", path, ": no such file or folder"));
    return FailSystem(errno, Concat("open ", path));
  }
  struct stat info{};
  if (fstat(file.get(), &info) != 0) return FailSystem(errno, Concat("stat ", path));
  if (!S_ISREG(info.st_mode)) return Fail(Code::kCorrupt, Concat(path, " is not a regular file"));
  std::string content;
  // Not st_size bytes: it is 0 for files in /proc, and other files may grow.
  while (content.size() <= max_bytes) {
    constexpr size_t kStep = 16384;
    const size_t before = content.size();
    content.resize(before + kStep);
    const ssize_t got = read(file.get(), content.data() + before, kStep);
    if (got < 0 && errno != EINTR) return FailSystem(errno, Concat("read ", path));
    content.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return content;
  }
  return Fail(Code::kCorrupt, Concat(path, " is longer than ", max_bytes, " bytes"));
}

}  // namespace gpushm
