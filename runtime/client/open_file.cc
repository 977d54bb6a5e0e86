#include "runtime/client/open_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "contract/tensors/model.h"
#include "platform/base/clock.h"

namespace gpushm::client {
namespace {

// How often to try another name for the temporary file.
constexpr int kTemporaryAttempts = 16;

Status NoSuchWay(const std::string& name) {
  return {Code::kUnsupported,
          Concat(name, " is a stream, which can only be read or written in order"),
          "leave file_method at GPUSHM_FILE_AUTO, or name a file"};
}

UniqueFd OpenPath(const std::string& path) {
  // Does not wait for a process that will write into a named pipe: poll does that, with a deadline.
  return UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

std::unexpected<Status> NotOpened(const std::string& path, int error) {
  if (error == ENOENT) return Fail(Code::kNotFound, Concat("no such file: ", path));
  return FailSystem(error, Concat("open ", path));
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
  file.own = OpenPath(file.name);
  if (!file.own) return NotOpened(file.name, errno);
  file.fd = file.own.get();
  return Use(std::move(file), asked);
}

namespace {

Result<LoadSource> OpenTensors(const std::string& path, FileWay asked) {
  // The disk's blocks are not aligned to the tensors' places, so GPUDirect Storage cannot move
  // them.
  if (asked == FileWay::kGds) {
    return Fail(Code::kUnsupported,
                Concat("GPUDirect Storage cannot lay out the tensors of ", path),
                "leave file_method at GPUSHM_FILE_AUTO, or set format to GPUSHM_FORMAT_RAW");
  }
  if (asked == FileWay::kAutoGds) asked = FileWay::kAuto;
  Result<tensors::Model> model =
      tensors::OpenModel(path, [](const std::string& file) -> Result<UniqueFd> {
        UniqueFd fd = OpenPath(file);
        if (!fd) return NotOpened(file, errno);
        return fd;
      });
  if (!model) return std::unexpected(model.error());
  LoadSource source{.parts = {},
                    .file_bytes = 0,
                    .buffer_bytes = model->buffer_bytes,
                    .table = std::move(model->table),
                    .name = path};
  for (tensors::ModelFile& from : model->files) {
    if (from.segments.empty()) continue;
    LoadSource::Part& part = source.parts.emplace_back();
    part.file.own = std::move(from.fd);
    part.file.fd = part.file.own.get();
    part.file.name = std::move(from.path);
    part.file.size_bytes = from.size_bytes;
    const Result<FilePlan> plan = PlanRead(part.file.fd, from.size_bytes, asked);
    if (!plan) return std::unexpected(plan.error().WithContext(part.file.name));
    part.file.plan = *plan;
    source.file_bytes += from.size_bytes;
    for (const tensors::Segment& segment : from.segments) {
      part.segments.push_back({segment.file_offset, segment.buffer_offset, segment.bytes});
    }
  }
  return source;
}

}  // namespace

Result<LoadSource> LoadSource::Open(const TransferFile& from, const TransferOptions& options) {
  const bool named = from.path && tensors::IsModelName(*from.path);
  struct stat info{};
  // A folder can only be a model. A pipe can have any name.
  const bool found = from.path && stat(from.path->c_str(), &info) == 0;
  const bool folder = found && S_ISDIR(info.st_mode);
  const bool file = found && S_ISREG(info.st_mode);
  const bool tensors = options.format == Format::kTensors ||
                       (options.format == Format::kAuto && (folder || (named && file)));
  if (tensors && !from.path) {
    return Fail(Code::kInvalidArgument,
                "format is GPUSHM_FORMAT_TENSORS, but a descriptor has no name for its shards",
                "pass the path of the safetensors file, index or folder");
  }
  if (tensors) return OpenTensors(*from.path, options.file_way);
  Result<OpenFile> opened = OpenToLoad(from, options.file_way);
  if (!opened) return std::unexpected(opened.error());
  LoadSource source{.parts = {},
                    .file_bytes = opened->size_bytes,
                    .buffer_bytes = opened->size_bytes,
                    .table = {},
                    .name = opened->name};
  source.parts.push_back({std::move(*opened), {}});
  return source;
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
