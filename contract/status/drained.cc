#include "contract/status/drained.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>

#include "platform/base/unique_fd.h"

namespace gpushm::status {
namespace {

constexpr size_t kMostUuidBytes = 64;

bool IsUuid(std::string_view name) {
  const auto fits = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
  };
  return (name.starts_with("GPU-") || name.starts_with("MIG-")) && name.size() <= kMostUuidBytes &&
         std::ranges::all_of(name, fits);
}

bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

// The first line, without control characters.
std::string Reason(std::string_view text) {
  std::string reason(text.substr(0, text.find('\n')));
  std::erase_if(reason, IsControl);
  return reason.empty() ? kNoReason : reason;
}

Result<void> CheckUuid(std::string_view gpu) {
  if (IsUuid(gpu)) return {};
  return Fail(Code::kInvalidArgument, Concat("\"", gpu, "\" is not the UUID of a GPU"),
              "`nvidia-smi -L` lists them: GPU-6d8c1a2e-..., or MIG-... for an instance");
}

}  // namespace

std::map<std::string, std::string> ReadDrained(const std::string& state_folder) {
  std::map<std::string, std::string> drained;
  const std::string path = Concat(state_folder, "/", kDrainedFolder);
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path.c_str()), closedir);
  if (folder == nullptr) return drained;
  while (const dirent* const entry = readdir(folder.get())) {
    const std::string name = entry->d_name;
    if (!IsUuid(name)) continue;
    const UniqueFd fd(openat(dirfd(folder.get()), name.c_str(),
                             O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
    struct stat file{};
    if (!fd || fstat(fd.get(), &file) != 0 || !S_ISREG(file.st_mode)) continue;
    std::array<char, kMostReasonBytes> bytes{};
    const ssize_t got = read(fd.get(), bytes.data(), bytes.size());
    drained[name] = Reason({bytes.data(), got > 0 ? static_cast<size_t>(got) : 0});
  }
  return drained;
}

Result<void> Drain(const std::string& state_folder, std::string_view gpu, std::string_view reason) {
  if (auto valid = CheckUuid(gpu); !valid) return valid;
  if (reason.size() > kMostReasonBytes || std::ranges::any_of(reason, IsControl)) {
    return Fail(Code::kInvalidArgument,
                Concat("the reason has ", reason.size(), " bytes, or more than one line"),
                Concat("give one line of at most ", kMostReasonBytes, " bytes"));
  }
  const std::string folder = Concat(state_folder, "/", kDrainedFolder);
  if (mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) {
    return FailSystem(errno, Concat("create ", folder));
  }
  // Beside it and renamed, so that the plugin sees it whole, and synchronised, so that a loss of
  // power does not put the GPU back into service.
  const std::string path = Concat(folder, "/", gpu);
  const std::string fresh = Concat(folder, "/.", gpu);
  const UniqueFd fd(
      open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644));
  const bool written =
      fd && write(fd.get(), reason.data(), reason.size()) == static_cast<ssize_t>(reason.size()) &&
      fsync(fd.get()) == 0 && rename(fresh.c_str(), path.c_str()) == 0;
  if (!written) return FailSystem(errno, Concat("write ", path));
  const UniqueFd parent(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!parent || fsync(parent.get()) != 0) return FailSystem(errno, Concat("sync ", folder));
  return {};
}

Result<void> Undrain(const std::string& state_folder, std::string_view gpu) {
  if (auto valid = CheckUuid(gpu); !valid) return valid;
  const std::string path = Concat(state_folder, "/", kDrainedFolder, "/", gpu);
  if (unlink(path.c_str()) == 0) return {};
  if (errno != ENOENT) return FailSystem(errno, Concat("remove ", path));
  return Fail(Code::kNotFound, Concat("GPU ", gpu, " is not drained"));
}

}  // namespace gpushm::status
