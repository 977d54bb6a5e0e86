#include "runtime/ctl/doctor_facts.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "contract/protocol/messages.h"
#include "contract/registry/host_list.h"
#include "platform/driver/device.h"
#include "runtime/ctl/probe.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace gpushm::ctl {
namespace {

// Inode of the host's PID namespace on every Linux: PROC_PID_INIT_INO of linux/proc_ns.h.
constexpr ino_t kHostPidNamespace = 0xEFFFFFFC;
constexpr uint64_t kScratchBytes = uint64_t{2} << 20;

std::optional<std::string> Variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return value;
}

std::string FirstMatch(const char* pattern) {
  glob_t found{};
  std::string path;
  if (glob(pattern, 0, nullptr, &found) == 0 && found.gl_pathc > 0) path = found.gl_pathv[0];
  globfree(&found);
  return path;
}

int PeerPidfdError() {
  std::array<int, 2> sockets{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets.data()) != 0) return errno;
  const UniqueFd ours(sockets[0]);
  const UniqueFd theirs(sockets[1]);
  int pidfd = -1;
  socklen_t size = sizeof pidfd;
  if (getsockopt(ours.get(), SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) != 0) return errno;
  const UniqueFd owner(pidfd);
  return 0;
}

int PidfdOpenError() {
  const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  return pidfd.valid() ? 0 : errno;
}

// CU_DEVICE_ATTRIBUTE_MPS_ENABLED, which headers of older toolkits lack. It needs no context: on an
// H100 with CUDA 13.0 it was 1 while nvidia-cuda-mps-control ran, else 0.
constexpr auto kMpsEnabled = static_cast<CUdevice_attribute>(133);

// -1: the driver does not report it.
int MpsOf(const CudaApi& api, const DeviceInfo& device) {
  int mps = -1;
  return api.cuDeviceGetAttribute(&mps, kMpsEnabled, device.device) == CUDA_SUCCESS ? mps : -1;
}

// What holds in both directions. A driver that does not answer counts as no access.
PeerAccess AccessBetween(const CudaApi& api, CUdevice first, CUdevice second) {
  return std::min(PeerAccessOf(api, first, second).value_or(PeerAccess::kNone),
                  PeerAccessOf(api, second, first).value_or(PeerAccess::kNone));
}

Result<DeviceInfo> FindDevice(const CudaApi& api, const std::string& uuid) {
  const auto devices = ListDevices(api);
  if (!devices) return std::unexpected(devices.error());
  for (const DeviceInfo& device : *devices) {
    if (device.uuid.ToString() == uuid) return device;
  }
  return Fail(Code::kNotFound, Concat(uuid, " is no longer visible"));
}

// Lines with path, version and simulated; a line "uuid bytes mps name" for each device, and after
// an empty line one "first second access" for each pair of them.
std::string Encode(const CudaApi& api, const std::vector<DeviceInfo>& devices) {
  std::string text =
      Concat(api.path(), "\n", api.driver_version(), "\n", api.simulated() ? 1 : 0, "\n");
  for (const DeviceInfo& device : devices) {
    text += Concat(device.uuid.ToString(), " ", device.total_bytes, " ", MpsOf(api, device), " ",
                   device.name, "\n");
  }
  text += '\n';
  for (size_t first = 0; first < devices.size(); ++first) {
    for (size_t second = first + 1; second < devices.size(); ++second) {
      const PeerAccess access = AccessBetween(api, devices[first].device, devices[second].device);
      text += Concat(first, " ", second, " ", static_cast<int>(access), "\n");
    }
  }
  return text;
}

GpuFacts Decode(const std::string& text) {
  std::istringstream in(text);
  GpuFacts facts;
  int simulated = 0;
  std::getline(in, facts.path);
  in >> facts.version >> simulated;
  facts.simulated = simulated != 0;
  in.ignore();  // The end of that line.
  for (std::string line; std::getline(in, line) && !line.empty();) {
    std::istringstream words(line);
    GpuFacts::Device device;
    int mps = -1;
    words >> device.uuid >> device.total_bytes >> mps;
    std::getline(words >> std::ws, device.name);
    device.mps = mps < 0 ? std::nullopt : std::optional(mps != 0);
    facts.devices.push_back(device);
  }
  GpuFacts::Pair pair;
  int access = 0;
  while (in >> pair.first >> pair.second >> access) {
    pair.access = static_cast<PeerAccess>(access);
    facts.pairs.push_back(pair);
  }
  return facts;
}

Result<void> CheckGranted(const CudaApi& api, const DeviceMapping& mapping, CUdevice device,
                          bool writable) {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  unsigned long long flags = 0;
  if (auto done =
          api.Check(api.cuMemGetAccess(&flags, &location, mapping.address()), "cuMemGetAccess");
      !done) {
    return done;
  }
  const auto wanted = writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  if (flags == static_cast<unsigned long long>(wanted)) return {};
  return Fail(Code::kUnsupported,
              Concat("the mapping has access ", flags, ", but ", static_cast<int>(wanted),
                     " was requested"),
              "this driver does not prevent readers from writing: update the driver");
}

}  // namespace

SocketFacts GatherSocket(const std::string& folder, const std::string& pod_uid) {
  SocketFacts facts;
  if (!pod_uid.empty()) {
    facts.folder = folder.empty() ? registry::kHostListDir : folder;
    facts.path = Concat(facts.folder, "/", registry::HostSocketFile(pod_uid));
  } else {
    const std::string from_environment = Variable("GPUSHM_DIR").value_or("");
    facts.folder = !folder.empty()             ? folder
                   : !from_environment.empty() ? from_environment
                                               : protocol::kDefaultFolder;
    facts.path = Concat(facts.folder, "/", protocol::kSocketName);
  }
  struct stat info{};
  facts.folder_exists = stat(facts.folder.c_str(), &info) == 0 || errno != ENOENT;
  facts.error = stat(facts.path.c_str(), &info) == 0 ? 0 : errno;
  facts.uid = geteuid();
  facts.gid = getegid();
  if (facts.error != 0) return facts;
  facts.is_socket = S_ISSOCK(info.st_mode);
  facts.mode = info.st_mode;
  facts.owner_uid = info.st_uid;
  facts.owner_gid = info.st_gid;
  facts.accessible = faccessat(AT_FDCWD, facts.path.c_str(), W_OK, AT_EACCESS) == 0;
  return facts;
}

SystemFacts GatherSystem() {
  SystemFacts facts;
  utsname name{};
  if (uname(&name) == 0) facts.kernel = name.release;
  facts.peer_pidfd_error = PeerPidfdError();
  facts.pidfd_open_error = PidfdOpenError();
  facts.pid = getpid();
  struct stat space{};
  if (stat("/proc/self/ns/pid", &space) == 0) {
    facts.own_pid_namespace = space.st_ino != kHostPidNamespace;
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) facts.open_files = limit.rlim_cur;
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
    facts.locked_bytes = limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
  }
  facts.cuda_visible_devices = Variable("CUDA_VISIBLE_DEVICES");
  facts.nvidia_visible_devices = Variable("NVIDIA_VISIBLE_DEVICES");
  facts.mps_pipe_folder = Variable("CUDA_MPS_PIPE_DIRECTORY");
  facts.mps_memory_limit = Variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
  facts.mps_compute = Variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
  std::ifstream limits("/sys/fs/cgroup/dmem.max");
  for (std::string line; std::getline(limits, line);) {
    if (!line.ends_with(" max")) facts.memory_cgroups.push_back(line);
  }
  if (facts.mps_pipe_folder) {
    if (auto state = status::ReadMpsState(*facts.mps_pipe_folder)) facts.mps_state = *state;
  }
  facts.cuda_ipc_library = dlsym(RTLD_DEFAULT, "gpushm_cudaipc_pid") != nullptr;
  facts.musl_loader = FirstMatch("/lib/ld-musl-*.so.1");
  facts.glibc_loader =
      !FirstMatch("/lib64/ld-linux-*.so.*").empty() || !FirstMatch("/lib/ld-linux-*.so.*").empty();
  return facts;
}

Result<GpuFacts> ProbeGpus(const std::string& driver, int64_t wait_ms) {
  const auto output = Probe(
      [&]() -> Result<ProbeOutput> {
        const auto api = CudaApi::Load(driver);
        if (!api) return std::unexpected(api.error());
        const auto devices = ListDevices(**api);
        if (!devices) return std::unexpected(devices.error());
        return ProbeOutput{.text = Encode(**api, *devices)};
      },
      wait_ms);
  if (!output) return std::unexpected(output.error());
  return Decode(output->text);
}

Result<UniqueFd> ProbeCreate(const std::string& driver, const std::string& uuid, int64_t wait_ms) {
  auto output = Probe(
      [&]() -> Result<ProbeOutput> {
        const auto api = CudaApi::Load(driver);
        if (!api) return std::unexpected(api.error());
        const auto device = FindDevice(**api, uuid);
        if (!device) return std::unexpected(device.error());
        const auto memory = DeviceMemory::Create(**api, device->device,
                                                 RoundUp(kScratchBytes, device->granularity));
        if (!memory) return std::unexpected(memory.error());
        auto descriptor = memory->Export();
        if (!descriptor) return std::unexpected(descriptor.error());
        return ProbeOutput{"", std::move(*descriptor)};
      },
      wait_ms);
  if (!output) return std::unexpected(output.error());
  return std::move(output->descriptor);
}

Result<void> ProbeMap(const std::string& driver, const std::string& uuid, const UniqueFd& memory,
                      bool writable, int64_t wait_ms) {
  const auto output = Probe(
      [&]() -> Result<ProbeOutput> {
        const auto api = CudaApi::Load(driver);
        if (!api) return std::unexpected(api.error());
        const auto device = FindDevice(**api, uuid);
        if (!device) return std::unexpected(device.error());
        const auto imported = DeviceMemory::Import(**api, memory.get());
        if (!imported) return std::unexpected(imported.error());
        const auto mapping =
            DeviceMapping::Map(**api, *imported, RoundUp(kScratchBytes, device->granularity),
                               device->device, writable ? Access::kReadWrite : Access::kRead);
        if (!mapping) return std::unexpected(mapping.error());
        if (auto done = CheckGranted(**api, *mapping, device->device, writable); !done) {
          return std::unexpected(done.error());
        }
        return ProbeOutput{};
      },
      wait_ms);
  if (!output) return std::unexpected(output.error());
  return {};
}

}  // namespace gpushm::ctl
