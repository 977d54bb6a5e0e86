// What containers get of the driver that FindDriver found.
#include <charconv>
#include <ranges>
#include <sstream>

#include "contract/protocol/link.h"
#include "platform/base/files.h"
#include "platform/base/read_whole.h"
#include "plugin/binding/snapshot.h"
#include "plugin/cdi/container_paths.h"
#include "plugin/cdi/driver_files.h"
#include "plugin/cdi/host_files.h"
#include "plugin/cdi/host_path.h"

namespace gpushm::plugin::cdi {
namespace {

constexpr size_t kMaxTextBytes = size_t{64} << 10;

// The file in the host's /proc, or in this process's if the host's /proc is not mounted with its
// root.
std::string ReadProc(const std::string& host_root, const std::string& path) {
  for (const std::string& root : {host_root, std::string()}) {
    if (auto text = ReadWhole(Concat(root, "/proc/driver/", path), kMaxTextBytes)) return *text;
  }
  return {};
}

std::optional<uint32_t> Number(std::string_view text) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data()) return {};
  return number;
}

// The minor number of the device for a MIG instance, such as "gpu0/gi1/ci0". It is read from the
// instance's own file, or else from the list of all (NVIDIA's MIG user guide, "Device nodes and
// capabilities").
std::optional<uint32_t> CapabilityMinor(const std::string& host_root, uint32_t gpu,
                                        const std::string& instance) {
  constexpr std::string_view kKey = "DeviceFileMinor:";
  const std::string own =
      ReadProc(host_root, Concat("nvidia/capabilities/gpu", gpu, "/mig/", instance, "/access"));
  if (const size_t key = own.find(kKey); key != std::string::npos) {
    const size_t digits = own.find_first_not_of(' ', key + kKey.size());
    if (digits != std::string::npos) return Number(std::string_view(own).substr(digits));
  }
  std::istringstream lines(ReadProc(host_root, "nvidia-caps/mig-minors"));
  const std::string wanted = Concat("gpu", gpu, "/", instance, "/access ");
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(wanted)) return Number(std::string_view(line).substr(wanted.size()));
  }
  return {};
}

Result<void> AddNode(const DriverFiles& driver, const std::string& name, const std::string& remedy,
                     Edits* edits) {
  if (!Exists(Concat(driver.dev_folder_seen, "/", name))) {
    return Fail(Code::kNotFound, Concat("no ", driver.dev_folder, "/", name), remedy);
  }
  edits->device_nodes.push_back(
      {.host_path = Concat(driver.dev_folder, "/", name), .container_path = Concat("/dev/", name)});
  return {};
}

// The GPU's node, and for a MIG instance also its two capabilities. Without them CUDA does not see
// the instance, and they hide the GPU's other instances.
Result<void> AddGpuNodes(const DriverFiles& driver, const inventory::Device& device, Edits* edits) {
  if (auto added = AddNode(driver, Concat("nvidia", device.minor),
                           Concat("create it with nvidia-modprobe -c ", device.minor), edits);
      !added) {
    return added;
  }
  if (device.parent_uuid.empty()) return {};
  if (device.gpu_instance == inventory::kNoInstance ||
      device.compute_instance == inventory::kNoInstance) {
    return Fail(Code::kNotFound,
                Concat("NVML gives no instance numbers for MIG instance ", device.uuid),
                "install a newer driver, or let nvidia-ctk cdi generate write a CDI spec");
  }
  const std::string gpu_instance = Concat("gi", device.gpu_instance);
  for (const std::string& instance :
       {gpu_instance, Concat(gpu_instance, "/ci", device.compute_instance)}) {
    const auto minor = CapabilityMinor(driver.host_root, device.minor, instance);
    if (!minor) {
      return Fail(
          Code::kNotFound,
          Concat("no capability of ", device.uuid, " (gpu", device.minor, "/", instance,
                 ") in /proc/driver/nvidia"),
          "mount the host's /proc/driver into the plugin, and check with nvidia-smi -L that "
          "the instance still exists");
    }
    if (auto added =
            AddNode(driver, Concat("nvidia-caps/nvidia-cap", *minor),
                    Concat("create it with nvidia-modprobe -f /proc/driver/nvidia/capabilities/gpu",
                           device.minor, "/mig/", instance, "/access"),
                    edits);
        !added) {
      return added;
    }
  }
  return {};
}

// NVIDIA's names for a device. MIG instances are named by UUID only, because their position is not
// known here.
const Edits* FindInSpec(const DriverFiles& driver, const inventory::Device& device) {
  std::vector<std::string> names = {device.uuid};
  if (device.parent_uuid.empty()) {
    names.push_back(std::to_string(device.index));
    names.push_back(Concat("gpu", device.index));
  }
  for (const std::string& name : names) {
    if (const auto found = driver.devices.find(name); found != driver.devices.end()) {
      return &found->second;
    }
  }
  return nullptr;
}

}  // namespace

Edits SharedEdits(const DriverFiles& driver, const OwnFiles& own) {
  Edits edits = driver.common;
  // Where NVIDIA's runtime is the node's default one, this keeps it from adding a GPU of its own.
  // Images request all GPUs (nvidia/cuda), and CDI's variables replace the image's and the pod's.
  edits.env["NVIDIA_VISIBLE_DEVICES"] = "void";
  if (!own.library.empty()) MountLibrary(own.library, kLibraryName, &edits);
  if (!own.ctl.empty()) {
    edits.mounts.push_back({.host_path = own.ctl, .container_path = Concat("/usr/bin/", kCtlName)});
  }
  return edits;
}

Result<Edits> BindingEdits(const DriverFiles& driver, const std::vector<inventory::Device>& devices,
                           ContainerRole role, const OwnFiles& own) {
  Edits edits;
  for (const inventory::Device& device : devices) {
    const Edits* const known =
        driver.kind == DriverKind::kNvidiaSpec ? FindInSpec(driver, device) : nullptr;
    if (known != nullptr) {
      Merge(&edits, *known);
      edits.env.erase("NVIDIA_VISIBLE_DEVICES");  // The shared spec has it.
    } else if (driver.kind == DriverKind::kSimulated) {
      edits.env["GPUSHM_SIM_DEVICES"] =
          binding::CommaList(devices | std::views::transform(&inventory::Device::uuid));
    } else if (auto added = AddGpuNodes(driver, device, &edits); !added) {
      return std::unexpected(added.error());
    }
  }
  if (role == ContainerRole::kSidecar && !own.link_folder.empty()) {
    edits.mounts.push_back(
        {.host_path = own.link_folder, .container_path = protocol::kDefaultLinkFolder});
  }
  return edits;
}

}  // namespace gpushm::plugin::cdi
