#include "plugin/cdi/driver_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

#include "platform/base/read_whole.h"
#include "platform/base/unique_fd.h"
#include "plugin/cdi/container_paths.h"
#include "plugin/cdi/host_path.h"
#include "plugin/cdi/nvidia_spec.h"

namespace gpushm::plugin::cdi {
namespace {

constexpr size_t kMaxDriverTextBytes = size_t{64} << 10;

// In CDI, later folders have precedence over earlier ones.
constexpr std::array<const char*, 6> kSpecs = {
    "/var/run/cdi/nvidia.yaml", "/var/run/cdi/nvidia.json", "/var/run/cdi/nvidia.com-gpu.yaml",
    "/etc/cdi/nvidia.yaml",     "/etc/cdi/nvidia.json",     "/etc/cdi/nvidia.com-gpu.yaml"};

// The host itself; GKE's Container-Optimized OS and Ubuntu (split, or a check of the tree takes it
// for a path of one machine); other installers that use one folder; the GPU operator's driver
// container.
constexpr std::array<const char*, 5> kRoots = {"/",
                                               "/home"
                                               "/kubernetes/bin/nvidia",
                                               "/opt/nvidia", "/usr/local/nvidia",
                                               "/run/nvidia/driver"};

// Below a root. "" is the root itself. /usr/lib is last because on other distributions it holds
// 32-bit libraries.
constexpr std::array<const char*, 8> kFolders = {
    "",       "/usr/lib64", GPUSHM_MULTIARCH,    GPUSHM_MULTIARCH "/nvidia/current",
    "/lib64", "/lib",       "/usr/lib64/nvidia", "/usr/lib"};

// What CUDA programs need, JIT compilation included (libnvidia-container's compute and utility
// libraries, without OpenCL). `number` is that of the name that programs request from the loader;
// null means the driver's whole version.
struct Library {
  const char* base;
  const char* number;
  bool required = false;
};
constexpr std::array<Library, 10> kLibraries = {{
    {"libcuda.so", "1", true},
    {"libnvidia-ml.so", "1", true},
    {"libnvidia-ptxjitcompiler.so", "1"},
    {"libnvidia-nvvm.so", "4"},
    {"libnvidia-nvvm70.so", "4"},
    {"libnvidia-gpucomp.so", nullptr},
    {"libnvidia-pkcs11.so", nullptr},           // Confidential computing.
    {"libnvidia-pkcs11-openssl3.so", nullptr},  // The same for OpenSSL 3.
    {"libnvidia-tileiras.so", nullptr},         // Tile IR, from driver 590 on.
    {"libcudadebugger.so", "1"},                // cuda-gdb.
}};

// A file on the host.
struct HostFile {
  std::string host;  // With all links resolved.
  std::string seen;
};

// A driver root to search.
struct Root {
  std::string host;       // "" for /.
  std::string host_root;  // As in DriverOptions.

  std::string seen() const { return host_root + host; }
  // Links may lead to paths inside the root, or to paths on the host.
  std::optional<HostFile> Find(const std::string& path) const {
    if (const auto inside = ResolveIn(seen(), path))
      return HostFile{host + *inside, seen() + *inside};
    if (const auto outside = ResolveIn(host_root, host + path)) {
      return HostFile{*outside, host_root + *outside};
    }
    return {};
  }
};

std::string ReadFirstLine(const std::string& path) {
  const Result<std::string> text = ReadWhole(path, kMaxDriverTextBytes);
  return text ? text->substr(0, text->find('\n')) : std::string();
}

// Version of the loaded kernel module; empty if unknown.
std::string LoadedVersion(const std::string& host_root) {
  const std::string path = "/sys/module/nvidia/version";
  std::string version = ReadFirstLine(host_root + path);
  return version.empty() ? ReadFirstLine(path) : version;
}

// "580.65.06" of ".../libcuda.so.580.65.06"; empty when the name has one number only.
std::string VersionOf(const std::string& path) {
  constexpr std::string_view kBase = "libcuda.so.";
  const std::string name = std::filesystem::path(path).filename();
  if (!name.starts_with(kBase)) return {};
  const std::string version = name.substr(kBase.size());
  return version.find('.') == std::string::npos ? std::string() : version;
}

// Only the simulated driver's libcuda exports this symbol (CudaApi::simulated). The file is
// searched for the symbol's name, because loading the file would run it.
bool IsSimulated(const std::string& path) {
  constexpr std::string_view kMarker = "gpushm_sim_version";
  constexpr size_t kStep = size_t{1} << 20;
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string window;
  for (;;) {
    const size_t kept = std::min(window.size(), kMarker.size());
    window.erase(0, window.size() - kept);
    window.resize(kept + kStep);
    const ssize_t got = file ? read(file.get(), window.data() + kept, kStep) : 0;
    if (got <= 0) return false;
    window.resize(kept + static_cast<size_t>(got));
    if (window.find(kMarker) != std::string::npos) return true;
  }
}

std::string ContainerName(const Library& library, const std::string& version) {
  return Concat(library.base, ".", library.number != nullptr ? library.number : version);
}

// Prefers the file of that version over the link to it, because links can be left over.
std::optional<HostFile> FindLibrary(const Root& root, const std::string& folder,
                                    const Library& library, const std::string& version) {
  if (!version.empty()) {
    if (auto file = root.Find(Concat(folder, "/", library.base, ".", version))) return file;
  }
  if (library.number == nullptr) return {};
  return root.Find(Concat(folder, "/", library.base, ".", library.number));
}

Result<void> AddLibraries(const Root& root, const std::string& folder, DriverFiles* driver) {
  for (const Library& library : kLibraries) {
    const auto file = FindLibrary(root, folder, library, driver->version);
    if (!file && library.required) {
      return Fail(Code::kNotFound,
                  Concat("no ", library.base, ".", library.number, " in ", root.host, folder),
                  "install the driver's compute libraries");
    }
    if (!file) continue;
    MountLibrary(file->host, ContainerName(library, driver->version), &driver->common);
    // For programs that link or load the name without a version.
    if (std::string_view(library.base) == "libcuda.so") {
      MountLibrary(file->host, library.base, &driver->common);
    }
  }
  return {};
}

// A script in a program's place starts the program from elsewhere, by a shell: neither is in the
// containers.
bool IsElf(const std::string& path) {
  constexpr std::string_view kMagic = "\177ELF";
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, kMagic.size()> start{};
  return file && read(file.get(), start.data(), start.size()) == ssize_t{start.size()} &&
         std::string_view(start.data(), start.size()) == kMagic;
}

// nvidia-smi, and those that share a GPU's time between processes (MPS).
void AddPrograms(const Root& root, std::initializer_list<const char*> folders,
                 DriverFiles* driver) {
  for (const char* const name :
       {"nvidia-smi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"}) {
    for (const char* const folder : folders) {
      const auto file = root.Find(Concat(folder, "/", name));
      if (!file || !IsElf(file->seen)) continue;
      driver->common.mounts.push_back(
          {.host_path = file->host, .container_path = Concat("/usr/bin/", name)});
      break;
    }
  }
}

// Finds the device nodes: in the host's /dev, or else in the root's own (a driver container's).
Result<void> FindDeviceNodes(const Root& root, DriverFiles* driver) {
  const std::pair<std::string, std::string> places[] = {
      {"/dev", root.host_root + "/dev"},
      {root.host + "/dev", root.seen() + "/dev"},
      {"/dev", "/dev"}};  // Last: a privileged plugin has the host's nodes itself.
  for (const auto& [host, seen] : places) {
    if (!Exists(seen + "/nvidiactl")) continue;
    driver->dev_folder = host;
    driver->dev_folder_seen = seen;
    for (const char* const name : {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}) {
      if (Exists(Concat(seen, "/", name))) {
        driver->common.device_nodes.push_back(
            {.host_path = Concat(host, "/", name), .container_path = Concat("/dev/", name)});
      } else if (std::string_view(name) == "nvidia-uvm") {
        return Fail(Code::kNotFound, Concat("no ", host, "/nvidia-uvm"),
                    "load the kernel module: nvidia-modprobe -u -c 0");
      }
    }
    return {};
  }
  return Fail(Code::kNotFound, Concat("no /dev/nvidiactl on the host or in ", root.host, "/dev"),
              "load the kernel module (nvidia-modprobe -c 0), and mount the host's /dev into the "
              "plugin");
}

DriverFiles Simulated(const Root& root, const DriverOptions& options) {
  DriverFiles driver;
  driver.kind = DriverKind::kSimulated;
  driver.root = root.host;
  driver.library_folder = root.seen();
  driver.host_root = root.host_root;
  for (const char* const name : {"libcuda.so.1", "libnvidia-ml.so.1"}) {
    if (const auto file = root.Find(Concat("/", name))) {
      MountLibrary(file->host, name, &driver.common);
    }
  }
  AddPrograms(root, {""}, &driver);
  driver.common.mounts.push_back({.host_path = options.simulated_state,
                                  .container_path = options.simulated_state,
                                  .read_only = false});
  driver.common.env["GPUSHM_SIM_DIR"] = options.simulated_state;
  return driver;
}

Result<DriverFiles> FromFolder(const Root& root, const std::string& folder,
                               const HostFile& libcuda) {
  DriverFiles driver;
  driver.root = root.host.empty() ? "/" : root.host;
  driver.version = VersionOf(libcuda.host);
  driver.library_folder = std::filesystem::path(libcuda.seen).parent_path();
  driver.host_root = root.host_root;
  const std::string loaded = LoadedVersion(root.host_root);
  if (!loaded.empty() && !driver.version.empty() && loaded != driver.version) {
    return Fail(Code::kNotFound,
                Concat(libcuda.host, " does not match the loaded kernel module ", loaded),
                "reboot the node after a driver upgrade");
  }
  if (auto added = AddLibraries(root, folder, &driver); !added) {
    return std::unexpected(added.error());
  }
  AddPrograms(root, {"/usr/bin", "/bin", "/usr/local/nvidia/bin"}, &driver);
  driver.common.env["TRITON_LIBCUDA_PATH"] = kLoaderFolders[1];
  if (auto found = FindDeviceNodes(root, &driver); !found) return std::unexpected(found.error());
  return driver;
}

Result<DriverFiles> FromRoot(const std::string& path, const DriverOptions& options) {
  const auto folder_on_host = ResolveIn(options.host_root, path);
  if (!folder_on_host) return Fail(Code::kNotFound, Concat("no such folder: ", path));
  const Root root{.host = *folder_on_host == "/" ? "" : *folder_on_host,
                  .host_root = options.host_root};
  std::optional<Status> problem;
  for (const std::string folder : kFolders) {
    const std::string stem = Concat(folder, "/libcuda.so.");
    auto libcuda = root.Find(stem + "1");
    const std::string loaded = LoadedVersion(root.host_root);
    if (const auto fits = loaded.empty() ? std::nullopt : root.Find(stem + loaded)) libcuda = fits;
    if (!libcuda) continue;
    if (folder.empty() && IsSimulated(libcuda->seen)) return Simulated(root, options);
    Result<DriverFiles> driver = FromFolder(root, folder, *libcuda);
    if (driver) return driver;
    if (!problem) problem = driver.error();
  }
  if (problem) return std::unexpected(*problem);
  return Fail(Code::kNotFound, Concat("no libcuda.so.1 below ", path));
}

// A spec that names missing files is left over from another driver: containers would not start.
Result<void> CheckComplete(const Edits& edits, const std::string& host_root) {
  std::vector<std::string> paths;
  for (const Mount& mount : edits.mounts) paths.push_back(mount.host_path);
  for (const Hook& hook : edits.hooks) paths.push_back(hook.path);
  for (const std::string& path : paths) {
    if (!ResolveIn(host_root, path)) {
      return Fail(Code::kNotFound, Concat("the spec names ", path, ", which does not exist"),
                  "write the spec again with nvidia-ctk cdi generate");
    }
  }
  for (const DeviceNode& node : edits.device_nodes) {
    if (!ResolveIn(host_root, node.host_path) && !Exists(node.host_path)) {
      return Fail(Code::kNotFound,
                  Concat("the spec names ", node.host_path, ", which does not exist"),
                  "load the kernel module: nvidia-modprobe -u -c 0");
    }
  }
  return {};
}

Result<DriverFiles> FromSpec(const std::string& path, const DriverOptions& options) {
  const auto found = ResolveIn(options.host_root, path);
  if (!found) return Fail(Code::kNotFound, Concat("no such file: ", path));
  const Result<std::string> text = ReadWhole(options.host_root + *found, kMaxNvidiaSpecBytes);
  if (!text) return std::unexpected(text.error());
  Result<NvidiaSpec> spec = ParseNvidiaSpec(*text);
  if (!spec) return std::unexpected(spec.error().WithContext(path));
  if (auto complete = CheckComplete(spec->common, options.host_root); !complete) {
    return std::unexpected(complete.error().WithContext(path));
  }
  DriverFiles driver;
  driver.kind = DriverKind::kNvidiaSpec;
  driver.root = path;
  driver.host_root = options.host_root;
  for (const Mount& mount : spec->common.mounts) {
    const std::string version = VersionOf(mount.host_path);
    if (version.empty()) continue;
    driver.version = version;
    driver.library_folder =
        options.host_root + std::filesystem::path(mount.host_path).parent_path().string();
  }
  const std::string loaded = LoadedVersion(options.host_root);
  if (!loaded.empty() && !driver.version.empty() && loaded != driver.version) {
    return Fail(Code::kNotFound,
                Concat(path, " is for driver ", driver.version,
                       ", but the loaded kernel module is ", loaded),
                "write the spec again with nvidia-ctk cdi generate");
  }
  for (const DeviceNode& node : spec->common.device_nodes) {
    if (node.container_path != "/dev/nvidiactl") continue;
    driver.dev_folder = std::filesystem::path(node.host_path).parent_path();
    const std::string seen = options.host_root + driver.dev_folder;
    driver.dev_folder_seen = Exists(seen + "/nvidiactl") ? seen : driver.dev_folder;
  }
  driver.common = std::move(spec->common);
  driver.devices = std::move(spec->devices);
  return driver;
}

bool IsSpecPath(const std::string& path) {
  return path.ends_with(".yaml") || path.ends_with(".json");
}

}  // namespace

Result<DriverFiles> FindDriver(const DriverOptions& options) {
  if (options.root != "auto") {
    if (!options.root.starts_with('/')) {
      return Fail(Code::kInvalidArgument, Concat("invalid driver root \"", options.root, "\""),
                  "use an absolute path on the host, or auto");
    }
    return IsSpecPath(options.root) ? FromSpec(options.root, options)
                                    : FromRoot(options.root, options);
  }
  std::vector<std::string> passed_over;
  std::optional<Status> first;
  const auto take = [&](Result<DriverFiles> driver) -> std::optional<DriverFiles> {
    if (driver) {
      driver->passed_over = passed_over;
      return std::move(*driver);
    }
    passed_over.push_back(driver.error().what());
    // A driver that nearly fits explains more than one that is missing.
    if (!driver.error().remedy().empty() && !first) first = driver.error();
    return {};
  };
  for (const char* const path : kSpecs) {
    if (!ResolveIn(options.host_root, path)) continue;
    if (auto driver = take(FromSpec(path, options))) return *driver;
  }
  for (const char* const path : kRoots) {
    if (auto driver = take(FromRoot(path, options))) return *driver;
  }
  if (first) return std::unexpected(first->WithContext("no usable GPU driver"));
  return Fail(Code::kNotFound, "no GPU driver found on this host",
              "install NVIDIA's driver, or set driver-root; the plugin must see the host's files");
}

}  // namespace gpushm::plugin::cdi
