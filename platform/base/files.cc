#include "platform/base/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>

namespace gpushm {
namespace {

constexpr char kTemporarySuffix[] = ".tmp";

Result<void> Done(int result, std::string_view what) {
  if (result == 0) return {};
  const int error = errno;
  if (error == ENOENT) return Fail(Code::kNotFound, Concat(what, ": no such file or folder"));
  if (error == EEXIST) return Fail(Code::kAlreadyExists, Concat(what, ": already exists"));
  return FailSystem(error, what);
}

// CDI's loaders read files that end in .json or .yaml (container-device-interface,
// pkg/cdi/spec-dirs.go), and ldconfig would find a *.so. This name matches neither.
std::string TemporaryName(const std::string& path) {
  static std::atomic<unsigned> counter{0};  // Threads run in parallel.
  const std::filesystem::path target(path);
  return Concat(target.parent_path().string(), "/.", target.filename().string(), ".", getpid(), "-",
                counter.fetch_add(1), kTemporarySuffix);
}

Result<void> Fill(Files& files, const std::string& path, std::string_view content, mode_t mode,
                  Durability durability) {
  Result<UniqueFd> file = files.Create(path);
  if (!file) return std::unexpected(file.error());
  if (auto done = files.Append(file->get(), content); !done) return done;
  if (auto done = files.SetMode(file->get(), mode); !done) return done;
  if (durability == Durability::kPower) return files.Sync(file->get());
  return {};
}

}  // namespace

Result<UniqueFd> Files::Create(const std::string& path) {
  UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file) return file;
  return std::unexpected(Done(-1, Concat("create ", path)).error());
}

Result<void> Files::Append(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FailSystem(errno, "write");
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return {};
}

Result<void> Files::SetMode(int fd, mode_t mode) { return Done(fchmod(fd, mode), "fchmod"); }

Result<void> Files::Sync(int fd) { return Done(fsync(fd), "fsync"); }

Result<void> Files::Rename(const std::string& from, const std::string& to) {
  return Done(rename(from.c_str(), to.c_str()), Concat("rename to ", to));
}

Result<void> Files::Unlink(const std::string& path) {
  return Done(unlink(path.c_str()), Concat("remove ", path));
}

Result<void> Files::MakeFolder(const std::string& path) {
  return Done(mkdir(path.c_str(), 0700), Concat("create folder ", path));
}

Result<void> Files::RemoveFolder(const std::string& path) {
  return Done(rmdir(path.c_str()), Concat("remove folder ", path));
}

Files& SystemFiles() {
  static Files files;
  return files;
}

Result<void> ReplaceFile(Files& files, const std::string& path, std::string_view content,
                         mode_t mode, Durability durability) {
  const std::string temporary = TemporaryName(path);
  Result<void> done = Fill(files, temporary, content, mode, durability);
  if (done) done = files.Rename(temporary, path);
  if (!done) {
    (void)files.Unlink(temporary);
    return std::unexpected(done.error().WithContext(Concat("write ", path)));
  }
  return {};
}

Result<void> SweepTemporaries(Files& files, const std::string& folder, std::string_view prefix) {
  const auto names = ListFolder(folder);
  if (!names) return std::unexpected(names.error());
  for (const std::string& name : *names) {
    if (!name.starts_with(Concat(".", prefix)) || !name.ends_with(kTemporarySuffix)) continue;
    const auto gone = files.Unlink(Concat(folder, "/", name));
    if (!gone && gone.error().code() != Code::kNotFound) return gone;
  }
  return {};
}

Result<std::vector<std::string>> ListFolder(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> opened(opendir(folder.c_str()), closedir);
  if (!opened) return std::unexpected(Done(-1, Concat("list ", folder)).error());
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = readdir(opened.get());  // The stream is local.
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) return FailSystem(errno, Concat("list ", folder));
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace gpushm
