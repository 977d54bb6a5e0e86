#include "plugin/cdi/host_files.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "contract/protocol/link.h"
#include "platform/base/name.h"
#include "platform/base/read_whole.h"
#include "plugin/cdi/host_path.h"

namespace gpushm::plugin::cdi {
namespace {

constexpr mode_t kOpenFolder = 0755;
constexpr mode_t kClosedFolder = 0700;
constexpr mode_t kSharedFolder = 0777;
constexpr mode_t kLibraryMode = 0644;
constexpr mode_t kProgramMode = 0755;
// An MPS daemon makes ten files, of a few hundred bytes.
constexpr char kMpsMount[] = "size=4m,nr_inodes=256,mode=0777";
// Several times the size of the library and gpushmctl with symbols.
constexpr size_t kMaxFileBytes = size_t{256} << 20;

Result<void> CheckName(std::string_view name) {
  if (IsDnsLabel(name)) return {};
  return Fail(Code::kInvalidArgument,
              Concat("invalid link folder name \"", name, "\": must be a DNS label"));
}

// Lets containers read the file where SELinux is on; the state folder's own label would forbid it.
// Without SELinux there is nothing to do, and if it fails, the container's error shows it.
void LabelForContainers(const std::string& path) {
  constexpr std::string_view kLabel = "system_u:object_r:container_file_t:s0";
  if (!Exists("/sys/fs/selinux/enforce")) return;
  (void)lsetxattr(path.c_str(), "security.selinux", kLabel.data(), kLabel.size(), 0);
}

bool HasMode(const std::string& path, mode_t mode) {
  struct stat info{};
  return lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
         (info.st_mode & 07777U) == mode;
}

Result<void> CheckProgramsRun(const std::string& folder, const std::string& on_host) {
  struct statvfs info{};
  if (statvfs(folder.c_str(), &info) != 0) return FailSystem(errno, Concat("statvfs ", folder));
  if ((info.f_flag & ST_NOEXEC) == 0) return {};
  return Fail(Code::kUnsupported,
              Concat(on_host, " is mounted noexec: containers could not load gpushm's library"),
              "set state-folder to a folder on another file system, such as /var/lib/gpushm");
}

// Whether what is mounted below `path` reaches the node, and so other containers.
bool IsSharedMount(const std::string& path) {
  std::ifstream mounts("/proc/self/mountinfo");
  bool shared = false;
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream fields(line);
    std::string skipped;
    std::string place;
    fields >> skipped >> skipped >> skipped >> skipped >> place;
    if (place != path) continue;
    shared = false;  // The last mount of a place is the one on top.
    for (std::string field; fields >> field && field != "-";) {
      shared = shared || field.starts_with("shared:");
    }
  }
  return shared;
}

bool IsMountPoint(const std::string& path, const std::string& parent) {
  struct stat inner{};
  struct stat outer{};
  return lstat(path.c_str(), &inner) == 0 && lstat(parent.c_str(), &outer) == 0 &&
         inner.st_dev != outer.st_dev;
}

Result<void> RemoveTmpfs(const std::string& path) {
  // Detached, because a container that is still ending may have it. EINVAL: nothing is mounted.
  if (umount2(path.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) != 0 && errno != EINVAL &&
      errno != ENOENT) {
    return FailSystem(errno, Concat("unmount ", path));
  }
  if (rmdir(path.c_str()) != 0 && errno != ENOENT) {
    return FailSystem(errno, Concat("remove ", path));
  }
  return {};
}

}  // namespace

Result<HostFiles> HostFiles::Open(std::string on_host, std::string seen, Files& files) {
  const std::string longest = Concat(seen, "/links/m0000/", protocol::kLinkSocketName);
  if (longest.size() >= sizeof(sockaddr_un::sun_path)) {
    return Fail(Code::kInvalidArgument,
                Concat("state folder ", seen,
                       " is too long: socket paths below it must have at "
                       "most ",
                       sizeof(sockaddr_un::sun_path) - 1, " bytes"),
                "use a shorter path");
  }
  HostFiles host(std::move(on_host), std::move(seen), &files);
  for (const auto& [folder, mode] : {std::pair{"", kOpenFolder},
                                     {"/lib", kOpenFolder},
                                     {"/bin", kOpenFolder},
                                     {"/links", kClosedFolder},
                                     {"/others", kClosedFolder}}) {
    if (auto made = host.MakeFolder(host.seen_ + folder, mode); !made) {
      return std::unexpected(made.error());
    }
  }
  for (const char* const folder : {"/lib", "/bin", "/driver-sim", "/cards"}) {
    if (!Exists(host.seen_ + folder)) continue;
    if (auto swept = SweepTemporaries(files, host.seen_ + folder, ""); !swept) {
      return std::unexpected(swept.error());
    }
  }
  return host;
}

Result<bool> HostFiles::Install(const std::string& library, const std::string& ctl) {
  const auto new_library = InstallFile(library, Concat("/lib/", kLibraryName), kLibraryMode);
  if (!new_library) return new_library;
  const auto new_ctl = InstallFile(ctl, Concat("/bin/", kCtlName), kProgramMode);
  if (!new_ctl) return new_ctl;
  return *new_library || *new_ctl;
}

Result<bool> HostFiles::InstallSimulatedDriver(const std::string& folder) {
  if (auto made = MakeFolder(seen_ + "/driver-sim", kOpenFolder); !made) {
    return std::unexpected(made.error());
  }
  bool any = false;
  for (const auto& [name, mode] :
       {std::pair{"libcuda.so.1", kLibraryMode}, std::pair{"libnvidia-ml.so.1", kLibraryMode},
        std::pair{"nvidia-cuda-mps-control", kProgramMode},
        std::pair{"nvidia-cuda-mps-server", kProgramMode}}) {
    const auto installed =
        InstallFile(Concat(folder, "/", name), Concat("/driver-sim/", name), mode);
    if (!installed) return installed;
    any = any || *installed;
  }
  return any;
}

Result<bool> HostFiles::InstallSimulatedCards(unsigned count, uint64_t bytes) {
  const std::string folder = seen_ + "/cards";
  if (auto made = MakeFolder(folder, kSharedFolder); !made) return std::unexpected(made.error());
  LabelForContainers(folder);
  std::string text = "gpus:\n";
  for (unsigned i = 0; i < count; ++i) {
    text += Concat("- {name: Simulated GPU, memory: ", bytes, "}\n");
  }
  const std::string path = folder + "/cards.yaml";
  const Result<std::string> old = ReadWhole(path, kMaxFileBytes);
  if (old && *old == text && HasMode(path, kLibraryMode)) return false;
  auto done = ReplaceFile(*files_, path, text, kLibraryMode, Durability::kPower);
  if (!done) return std::unexpected(done.error());
  LabelForContainers(path);
  return true;
}

Result<bool> HostFiles::InstallFile(const std::string& source, const std::string& place,
                                    mode_t mode) {
  const std::string path = seen_ + place;
  if (auto run = CheckProgramsRun(seen_, on_host_); !run) return std::unexpected(run.error());
  std::error_code error;
  // Images contain links.
  const std::filesystem::path real = std::filesystem::canonical(source, error);
  const Result<std::string> content = ReadWhole(error ? source : real.string(), kMaxFileBytes);
  if (!content) return std::unexpected(content.error().WithContext("the plugin's image"));
  const Result<std::string> old = ReadWhole(path, kMaxFileBytes);
  const bool same = old && *old == *content && HasMode(path, mode);
  if (!same) {
    if (auto done = ReplaceFile(*files_, path, *content, mode, Durability::kPower); !done) {
      return std::unexpected(done.error());
    }
    const Result<std::string> written = ReadWhole(path, kMaxFileBytes);
    if (!written || *written != *content) {
      return Fail(Code::kCorrupt, Concat(path, " reads back different from what was written"),
                  "check the host's disk");
    }
  }
  LabelForContainers(path);
  return !same;
}

Result<void> HostFiles::MakeFolder(const std::string& path, mode_t mode) {
  for (int attempt = 0;; ++attempt) {
    const auto made = files_->MakeFolder(path);
    if (!made && made.error().code() != Code::kAlreadyExists) return made;
    const UniqueFd folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (folder) {
      struct stat info{};
      if (fstat(folder.get(), &info) == 0 && (info.st_mode & 07777U) == mode) return {};
      return files_->SetMode(folder.get(), mode);
    }
    if (attempt > 0 || (errno != ENOTDIR && errno != ELOOP)) {
      return FailSystem(errno, Concat("open ", path));
    }
    if (auto gone = files_->Unlink(path); !gone) return gone;  // A file or a link.
  }
}

std::string HostFiles::LinkFolder(std::string_view name) const {
  return Concat(on_host_, "/links/", name);
}

Result<std::string> HostFiles::MakeLinkFolder(std::string_view name) {
  return MakeFolderIn("links", name);
}

Result<std::string> HostFiles::MakeFolderIn(std::string_view parent, std::string_view name) {
  if (auto valid = CheckName(name); !valid) return std::unexpected(valid.error());
  std::string path = Concat(seen_, "/", parent, "/", name);
  if (auto made = MakeFolder(path, kOpenFolder); !made) return std::unexpected(made.error());
  LabelForContainers(path);
  return path;
}

std::string HostFiles::OthersFolder(std::string_view name) const {
  return Concat(on_host_, "/others/", name);
}

Result<std::string> HostFiles::MakeOthersFolder(std::string_view name) {
  return MakeFolderIn("others", name);
}

std::string HostFiles::MpsFolder(std::string_view name) const { return Concat(run_, "/", name); }

Result<std::string> HostFiles::MakeMpsFolder(std::string_view name) {
  if (auto valid = CheckName(name); !valid) return std::unexpected(valid.error());
  const std::string remedy =
      Concat("give the plugin's container ", run_,
             " with mountPropagation: Bidirectional and privileged: true, as the chart does");
  if (run_.empty() || !IsSharedMount(run_)) {
    return Fail(Code::kUnsupported,
                Concat("the claim has a request named mps, and ", run_.empty() ? "no folder" : run_,
                       " is shared with the node for it"),
                remedy);
  }
  std::string path = MpsFolder(name);
  if (IsMountPoint(path, run_)) return path;
  if (auto made = MakeFolder(path, kOpenFolder); !made) return std::unexpected(made.error());
  constexpr unsigned long kFlags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
  if (mount("gpushm", path.c_str(), "tmpfs", kFlags, kMpsMount) != 0) {
    const int error = errno;
    rmdir(path.c_str());
    return Fail(Code::kUnsupported, Concat("mount a tmpfs at ", path, ": ", std::strerror(error)),
                remedy);
  }
  LabelForContainers(path);
  return path;
}

Result<void> HostFiles::RemoveLinkFolder(std::string_view name) {
  if (auto valid = CheckName(name); !valid) return valid;
  for (const char* const parent : {"links", "others"}) {
    if (auto removed = RemoveWhole(Concat(seen_, "/", parent, "/", name)); !removed) return removed;
  }
  return run_.empty() ? Result<void>() : RemoveTmpfs(MpsFolder(name));
}

// With its files; it has no folders.
Result<void> HostFiles::RemoveWhole(const std::string& path) {
  const auto inside = ListFolder(path);
  if (!inside && inside.error().code() == Code::kNotFound) return {};
  if (!inside) return std::unexpected(inside.error());
  for (const std::string& entry : *inside) {
    const auto gone = files_->Unlink(Concat(path, "/", entry));
    if (!gone && gone.error().code() != Code::kNotFound) return gone;
  }
  auto removed = files_->RemoveFolder(path);
  if (!removed && removed.error().code() == Code::kNotFound) return {};
  return removed;
}

Result<std::vector<std::string>> HostFiles::LinkFolders() const {
  auto names = ListFolder(seen_ + "/links");
  if (!names) return names;
  const auto others = ListFolder(seen_ + "/others");
  if (!others) return others;
  for (const std::string& name : *others) {
    if (std::ranges::count(*names, name) == 0) names->push_back(name);
  }
  if (!run_.empty()) {
    const auto of_claims = ListFolder(run_);
    if (!of_claims && of_claims.error().code() != Code::kNotFound) return of_claims;
    for (const std::string& name : of_claims.value_or(std::vector<std::string>())) {
      if (std::ranges::count(*names, name) == 0) names->push_back(name);
    }
  }
  std::erase_if(*names, [](const std::string& name) { return !IsDnsLabel(name); });
  return names;
}

}  // namespace gpushm::plugin::cdi
