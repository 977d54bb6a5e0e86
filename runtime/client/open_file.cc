#include "runtime/client/open_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "platform/base/clock.h"

namespace gpushm::client {
namespace {

// How often to try another name for the temporary file.
constexpr int kTemporaryAttempts = 16;

Status NoSuchWay(const std::string& name) {
  return {Code::kUnsupported,
          Concat(name, " is a stream, which can only be read or written in order"),
          "leave file_way at GPUSHM_FILE_AUTO, or name a file"};
}

// Opens the same file again, with an open file description of its own whose flags no other process
// sees.
UniqueFd Reopen(int descriptor) {
  const std::string link = Concat("/proc/self/fd/", descriptor);
  return UniqueFd(open(link.c_str(), O_RDONLY | O_CLOEXEC));
}

Result<OpenFile> Use(OpenFile file, FileWay asked) {
  struct stat info{};
  if (fstat(file.fd, &info) != 0) return FailSystem(errno, Concat("stat ", file.name));
  if (S_ISDIR(info.st_mode)) {
    return Fail(Code::kInvalidArgument, Concat(file.name, " is a directory"), "name a file");
  }
  const bool borrowed = !file.own;
  const bool from_start = !borrowed || lseek(file.fd, 0, SEEK_CUR) == 0;
  if (!S_ISREG(info.st_mode) || !from_start) {
    if (!IsOpen(asked)) return std::unexpected(NoSuchWay(file.name));
    file.plan = {FileWay::kStream, FileReason::kInOrder};
    file.for_broker = S_ISFIFO(info.st_mode);
    return file;
  }
  file.size_bytes = static_cast<uint64_t>(info.st_size);
  if (borrowed) {
    file.own = Reopen(file.fd);
    // Other processes may share the description, as the shell shares that of standard input, so its
    // flags stay unchanged.
    if (!file.own && (asked == FileWay::kDirect || asked == FileWay::kGds)) {
      return FailSystem(errno, "cannot open the descriptor's file with O_DIRECT");
    }
    if (!file.own) {
      file.plan = {FileWay::kCached, FileReason::kRefused};
      return file;
    }
    file.fd = file.own.get();
  }
  const Result<FilePlan> plan = PlanRead(file.fd, file.size_bytes, asked);
  if (!plan) return std::unexpected(plan.error().WithContext(file.name));
  file.plan = *plan;
  return file;
}

}  // namespace

Result<OpenFile> OpenToLoad(const TransferFile& from, FileWay asked) {
  OpenFile file;
  if (!from.path) {
    file.fd = from.descriptor;
    file.name = Concat("descriptor ", from.descriptor);
    return Use(std::move(file), asked);
  }
  file.name = *from.path;
  // Does not wait for a process that will write into a named pipe: poll does that, with a deadline.
  file.own.Reset(open(file.name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.own) {
    const int error = errno;
    if (error == ENOENT) return Fail(Code::kNotFound, Concat("no such file: ", file.name));
    return FailSystem(error, Concat("open ", file.name));
  }
  file.fd = file.own.get();
  return Use(std::move(file), asked);
}

Result<SaveTarget> SaveTarget::Open(const TransferFile& to, uint64_t size_bytes, FileWay asked) {
  SaveTarget target;
  OpenFile& file = target.file_;
  if (!to.path) {
    struct stat info{};
    file.fd = to.descriptor;
    file.name = Concat("descriptor ", to.descriptor);
    if (fstat(file.fd, &info) != 0) return FailSystem(errno, Concat("stat ", file.name));
    if (!IsOpen(asked)) return std::unexpected(NoSuchWay(file.name));
    file.plan = {FileWay::kStream, FileReason::kInOrder};
    file.for_broker = S_ISFIFO(info.st_mode);
    return target;
  }
  target.path_ = *to.path;
  struct stat there{};
  if (stat(target.path_.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
    return Fail(
        Code::kInvalidArgument,
        Concat(target.path_, " is not a regular file, and a save would replace it with one"),
        "open it yourself and pass its descriptor");
  }
  for (int attempt = 0;; ++attempt) {
    std::string temporary = Concat(target.path_, ".gpushm-", getpid(), "-", MonotonicNs());
    file.own.Reset(open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file.own) {
      target.temporary_ = std::move(temporary);
      break;
    }
    if (errno != EEXIST || attempt == kTemporaryAttempts) {
      return FailSystem(errno, Concat("create ", temporary));
    }
  }
  file.fd = file.own.get();
  file.name = target.path_;
  const Result<FilePlan> plan = PlanWrite(file.fd, size_bytes, asked);
  if (!plan) return std::unexpected(plan.error().WithContext(file.name));
  file.plan = *plan;
  return target;
}

Result<void> SaveTarget::Commit() {
  if (temporary_.empty()) return {};
  if (fsync(file_.fd) != 0) return FailSystem(errno, Concat("fsync ", temporary_));
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    return FailSystem(errno, Concat("rename ", temporary_, " to ", path_));
  }
  temporary_.clear();
  return {};
}

SaveTarget::SaveTarget(SaveTarget&& other) noexcept
    : file_(std::move(other.file_)),
      temporary_(std::exchange(other.temporary_, {})),
      path_(std::move(other.path_)) {}

SaveTarget::~SaveTarget() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

}  // namespace gpushm::client
