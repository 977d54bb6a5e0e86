#include "runtime/client/files/open_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
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

std::string NameOfDescriptor(int descriptor) {
  if (descriptor == STDIN_FILENO) return "standard input";
  if (descriptor == STDOUT_FILENO) return "standard output";
  return Concat("descriptor ", descriptor);
}

// Who may read what the system refuses to open, and as whom this process asked: the file, or the
// first folder on the way to it that cannot be entered.
std::unexpected<Status> FailDenied(const std::string& path) {
  struct stat info{};
  std::string what = Concat("open ", path);
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (stat(part.c_str(), &info) != 0) return FailSystem(EACCES, what);
    const bool last = end == std::string::npos;
    struct stat inside{};
    const bool entered = stat(Concat(part, "/.").c_str(), &inside) == 0;
    if (!last && entered) continue;
    if (!last) what += Concat(" in the folder ", part);
    break;
  }
  std::array<char, 8> mode{};
  std::snprintf(mode.data(), mode.size(), "%04o", info.st_mode & 07777);
  what += Concat(", which is of user ", info.st_uid, " and group ", info.st_gid, " with mode ",
                 mode.data(), ", as user ", geteuid(), " and group ", getegid());
  std::vector<gid_t> groups(static_cast<size_t>(std::max(getgroups(0, nullptr), 0)));
  const int count = getgroups(static_cast<int>(groups.size()), groups.data());
  for (int i = 0; i < count; ++i) {
    if (groups[static_cast<size_t>(i)] != getegid())
      what += Concat(", ", groups[static_cast<size_t>(i)]);
  }
  return FailSystem(EACCES, what, "chmod a+rX it, or set fsGroup or runAsUser of the pod");
}

// The first link on the way to `path` that leads nowhere: "L is a link to T". Empty: there is none.
std::string DeadLink(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    struct stat info{};
    if (lstat(part.c_str(), &info) != 0) return "";
    if (S_ISLNK(info.st_mode) && stat(part.c_str(), &info) != 0) {
      std::string target(PATH_MAX, '\0');
      const ssize_t size = readlink(part.c_str(), target.data(), target.size());
      target.resize(size < 0 ? 0 : static_cast<size_t>(size));
      return Concat(part, " is a link to ", target);
    }
    if (end == std::string::npos) return "";
  }
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
    return Fail(Code::kInvalidArgument, Concat(file.name, " is a folder, which has no bytes"),
                "leave format at GPUSHM_FORMAT_AUTO to load its tensors, or name a file");
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

Result<UniqueFd> OpenPath(const std::string& path) {
  // Does not wait for a process that will write into a named pipe: poll does that, with a deadline.
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd) return fd;
  const int error = errno;
  if (error == EACCES) return FailDenied(path);
  if (error != ENOENT && error != ENOTDIR) return FailSystem(error, Concat("open ", path));
  const std::string link = DeadLink(path);
  if (link.empty()) return Fail(Code::kNotFound, Concat("no such file: ", path));
  return Fail(Code::kNotFound, Concat(link, ", which is not there"),
              "a link must lead to a file that this container has: one of the same volume");
}

Result<OpenFile> OpenToLoad(const TransferFile& from, FileWay asked) {
  OpenFile file;
  if (!from.path) {
    file.fd = from.descriptor;
    file.name = NameOfDescriptor(from.descriptor);
    return Use(std::move(file), asked);
  }
  file.name = *from.path;
  Result<UniqueFd> own = OpenPath(file.name);
  if (!own) return std::unexpected(own.error());
  file.own = std::move(*own);
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
  Result<tensors::Model> model = tensors::OpenModel(path, OpenPath);
  if (!model) return std::unexpected(model.error());
  LoadSource source;
  source.file_bytes = model->file_bytes;
  source.buffer_bytes = model->buffer_bytes;
  source.table = std::move(model->table);
  source.name = path;
  source.read = std::move(model->read);
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
    for (const tensors::Segment& segment : from.segments) {
      part.segments.push_back({segment.file_offset, segment.buffer_offset, segment.bytes});
    }
  }
  return source;
}

Result<LoadSource> OpenAsItIs(const TransferFile& from, const TransferOptions& options) {
  Result<OpenFile> opened = OpenToLoad(from, options.job.way);
  if (!opened) return std::unexpected(opened.error());
  LoadSource source;
  source.name = opened->name;
  if (opened->is_stream()) {
    source.buffer_bytes = options.announced.bytes;
    source.parts.push_back({std::move(*opened), {}});
    return source;
  }
  const auto info = StatBeforeReading(opened->fd, opened->name);
  if (!info) return std::unexpected(info.error());
  const FileStamp stamp = FileStamp::Of(*info);
  opened->size_bytes = static_cast<uint64_t>(info->st_size);
  if (opened->size_bytes == 0) {
    return Fail(Code::kBusy, Concat(opened->name, " is empty"), "wait until it is written");
  }
  if (auto real = tensors::RefusePointer(opened->fd, opened->size_bytes, opened->name); !real) {
    return std::unexpected(real.error());
  }
  source.file_bytes = opened->size_bytes;
  source.buffer_bytes = opened->size_bytes;
  if (from.path) {
    source.read.files.push_back({*from.path, stamp});
  } else {
    source.stamp = stamp;
  }
  if (options.announced.bytes == 0) {
    source.settling = {stamp.modified_ns, MonotonicNs()};
  } else if (opened->own) {  // It moves the descriptor's position, which is the caller's otherwise.
    auto all = tensors::CheckWritten(opened->fd, stamp, opened->name);
    if (!all) return std::unexpected(all.error());
  }
  source.parts.push_back({std::move(*opened), {}});
  return source;
}

Result<LoadSource> OpenByFormat(const TransferFile& from, const TransferOptions& options) {
  const bool named = from.path && tensors::IsModelName(*from.path);
  struct stat info{};
  // A folder can only be a model. A pipe can have any name.
  const bool found = from.path && stat(from.path->c_str(), &info) == 0;
  const bool folder = found && S_ISDIR(info.st_mode);
  const bool file = found && S_ISREG(info.st_mode);
  const bool tensors = options.format == Format::kTensors ||
                       (options.format == Format::kAuto && (folder || (named && file)));
  if (!tensors) return OpenAsItIs(from, options);
  if (from.path) return OpenTensors(*from.path, options.job.way);
  return Fail(Code::kInvalidArgument,
              "format is GPUSHM_FORMAT_TENSORS, but a descriptor has no name for its shards",
              "pass the path of the safetensors file, index or folder");
}

Result<void> CheckAnnounced(const Announced& announced, const std::string& name, uint64_t bytes) {
  if (announced.bytes == 0 || announced.bytes == bytes) return {};
  const bool short_of_it = bytes < announced.bytes;
  return Fail(
      short_of_it ? Code::kBusy : Code::kInvalidArgument,
      Concat(name, " has ", bytes, short_of_it ? " of the " : " bytes, and ", announced.bytes,
             short_of_it ? " bytes that were announced" : " were announced"),
      short_of_it ? "wait until all of it is there, or fetch it again"
                  : "announce its size, or fetch it again");
}

// Whether waiting can help.
bool MayCome(Code code) {
  return code == Code::kNotFound || code == Code::kBusy || code == Code::kSystem;
}

}  // namespace

Result<LoadSource> LoadSource::Open(const TransferFile& from, const TransferOptions& options) {
  Result<LoadSource> source = OpenByFormat(from, options);
  if (!source) return source;
  if (!source->is_stream()) {
    auto size = CheckAnnounced(options.announced, source->name, source->file_bytes);
    if (!size) return std::unexpected(size.error());
  }
  source->from = from;
  return source;
}

Result<LoadSource> LoadSource::Await(const TransferFile& from, const TransferOptions& options,
                                     const Wait& wait,
                                     const std::function<Result<void>(const Status& why)>& going) {
  for (;;) {
    Result<LoadSource> source = Open(from, options);
    if (source || wait.dont_wait || !MayCome(source.error().code())) return source;
    if (wait.condition.Passed()) {
      return Fail(Code::kTimeout, Concat("timed out waiting for the file: ", source.error().what()),
                  source.error().remedy());
    }
    if (auto on = going ? going(source.error()) : Result<void>(); !on)
      return std::unexpected(on.error());
    poll(nullptr, 0, std::min(kLookMs, wait.condition.RemainingMs()));
  }
}

Result<void> LoadSource::CheckUnchanged() const {
  if (auto same = tensors::CheckUnchanged(read, OpenPath); !same) return same;
  struct stat info{};
  if (!stamp || (fstat(parts.front().file.fd, &info) == 0 && FileStamp::Of(info) == *stamp)) {
    return {};
  }
  return Fail(Code::kBusy, Concat("the file of ", name, " changed while it was loaded"),
              "load it when nobody writes it");
}

int64_t LoadSource::UnsettledMs() const {
  if (!settling) return 0;
  const int64_t unchanged_ns =
      std::max(UnixNs() - settling->modified_ns, MonotonicNs() - settling->opened_ns);
  return std::max<int64_t>(kSettleMs - unchanged_ns / 1'000'000, 0);
}

Result<void> LoadSource::CheckStream(const Announced& announced, uint64_t bytes) const {
  if (!is_stream()) return {};
  if (bytes == 0) {
    return Fail(Code::kInvalidArgument, Concat(name, ": the stream had nothing"),
                "look at what writes into the pipe: it may have failed");
  }
  if (announced.bytes == 0 || announced.bytes == bytes) return {};
  return Fail(Code::kInvalidArgument,
              Concat(name, ": the stream had ", bytes, " of the ", announced.bytes,
                     " bytes that were announced"),
              "look at what writes into the pipe: it may have failed");
}

Result<SaveTarget> SaveTarget::Open(const TransferFile& to, uint64_t size_bytes, FileWay asked) {
  SaveTarget target;
  OpenFile& file = target.file_;
  if (!to.path) {
    struct stat info{};
    file.fd = to.descriptor;
    file.name = NameOfDescriptor(to.descriptor);
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
