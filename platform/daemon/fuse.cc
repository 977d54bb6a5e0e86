#include "platform/daemon/fuse.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "platform/base/unique_fd.h"

namespace gpushm {
namespace {

// From linux/mount.h, for C libraries that lack them. The system calls have the same numbers on all
// architectures.
constexpr long kFsopen = 430;
constexpr long kFsconfig = 431;
constexpr long kFsmount = 432;
constexpr unsigned kFsopenCloexec = 1;
constexpr unsigned kFsmountCloexec = 1;
constexpr unsigned kFsconfigCmdCreate = 6;

// FUSE's control file system, mounted without a path.
UniqueFd MountFusectl() {
  const UniqueFd context(static_cast<int>(syscall(kFsopen, "fusectl", kFsopenCloexec)));
  if (!context) return {};
  if (syscall(kFsconfig, context.get(), kFsconfigCmdCreate, nullptr, nullptr, 0) != 0) return {};
  return UniqueFd(static_cast<int>(syscall(kFsmount, context.get(), kFsmountCloexec, 0)));
}

// The UID of the pod whose volume is mounted there; empty: it is not a pod's volume. Kubelets mount
// at <root>/pods/<uid>/volumes/... and, if a container uses a part of a volume, at
// <root>/pods/<uid>/volume-subpaths/...
std::string_view PodOfVolume(std::string_view mount_point) {
  constexpr std::string_view kPods = "/pods/";
  for (size_t at = mount_point.find(kPods); at != std::string_view::npos;
       at = mount_point.find(kPods, at + 1)) {
    const std::string_view pod = mount_point.substr(at + kPods.size());
    const size_t end = pod.find('/');
    if (end == std::string_view::npos) break;
    const std::string_view below = pod.substr(end);
    if (below.starts_with("/volumes/") || below.starts_with("/volume-subpaths/")) {
      return pod.substr(0, end);
    }
  }
  return {};
}

}  // namespace

std::string OthersMount(dev_t device, std::istream& mountinfo) {
  const std::string wanted = Concat(major(device), ":", minor(device));
  std::string owner;
  for (std::string line; std::getline(mountinfo, line);) {
    std::istringstream fields(line);
    std::string id;
    std::string parent;
    std::string numbers;
    std::string root;
    std::string mount_point;
    fields >> id >> parent >> numbers >> root >> mount_point;
    if (numbers != wanted) continue;
    const std::string_view pod = PodOfVolume(mount_point);
    if (pod.empty() || (!owner.empty() && owner != pod)) return mount_point;
    owner = pod;
  }
  return {};
}

Result<void> AbortFuse(dev_t device) {
  const std::string name = Concat("the FUSE file system ", major(device), ":", minor(device));
  std::ifstream mounts("/proc/thread-self/mountinfo");
  if (const std::string others = OthersMount(device, mounts); !others.empty()) {
    return Fail(Code::kDenied,
                Concat(name, " is mounted on the node at ", others, ", and others may use it"),
                "find out why its daemon does not answer");
  }
  const UniqueFd fusectl = MountFusectl();
  if (!fusectl) {
    const int error = errno;
    return Fail(error == EPERM ? Code::kDenied : Code::kUnsupported,
                Concat(name, " cannot be aborted: mounting fusectl failed: ", std::strerror(error)),
                "the plugin needs CAP_SYS_ADMIN: set plugin.privileged");
  }
  // The kernel names a connection by the st_dev that it uses itself: 12 bits of the major number,
  // 20 of the minor (MKDEV in include/linux/kdev_t.h).
  const std::string path = Concat((uint64_t{major(device)} << 20) | minor(device), "/abort");
  const UniqueFd abort(openat(fusectl.get(), path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!abort) {
    if (errno == ENOENT) return Fail(Code::kNotFound, Concat(name, " does not exist any more"));
    return FailSystem(errno, Concat("open ", path, " of fusectl"));
  }
  if (write(abort.get(), "1", 1) != 1) return FailSystem(errno, Concat("abort ", name));
  return {};
}

}  // namespace gpushm
