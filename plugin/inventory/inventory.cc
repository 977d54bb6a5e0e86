#include "plugin/inventory/inventory.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <optional>

namespace gpushm::plugin::inventory {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGranularity = 2 * kMiB;

// Reads a string of at most NVML's maximum length.
template <typename Get>
Result<std::string> Text(const NvmlApi& nvml, std::string_view call, Get get) {
  std::array<char, NVML_DEVICE_NAME_V2_BUFFER_SIZE> text{};
  if (auto got = nvml.Check(get(text.data(), static_cast<unsigned>(text.size())), call); !got) {
    return std::unexpected(got.error());
  }
  text.back() = '\0';
  return std::string(text.data());
}

// Reads what a GPU and a MIG instance have in common.
Result<Device> Describe(const NvmlApi& nvml, nvmlDevice_t handle) {
  Device device;
  const auto uuid = Text(nvml, "nvmlDeviceGetUUID", [&](char* text, unsigned size) {
    return nvml.nvmlDeviceGetUUID(handle, text, size);
  });
  if (!uuid) return std::unexpected(uuid.error());
  const auto name = Text(nvml, "nvmlDeviceGetName", [&](char* text, unsigned size) {
    return nvml.nvmlDeviceGetName(handle, text, size);
  });
  if (!name) return std::unexpected(name.error());
  nvmlMemory_t memory{};
  if (auto got = nvml.Check(nvml.nvmlDeviceGetMemoryInfo(handle, &memory),
                            Concat("nvmlDeviceGetMemoryInfo of ", *uuid));
      !got) {
    return std::unexpected(got.error());
  }
  device.uuid = *uuid;
  device.name = *name;
  device.total_bytes = memory.total;
  return device;
}

// NVML writes "00000000:3B:00.0".
std::string PciAddress(const NvmlApi& nvml, nvmlDevice_t handle) {
  nvmlPciInfo_t pci{};
  if (nvml.nvmlDeviceGetPciInfo_v3(handle, &pci) != NVML_SUCCESS) return {};
  std::string address(pci.busId);
  if (address.size() > 4) address.erase(0, 4);
  std::ranges::transform(address, address.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return address;
}

uint32_t InstanceId(nvmlReturn_t (*get)(nvmlDevice_t, unsigned*), nvmlDevice_t instance) {
  unsigned id = kNoInstance;
  return get != nullptr && get(instance, &id) == NVML_SUCCESS ? id : kNoInstance;
}

// The MIG instances of a GPU; empty unless it is in MIG mode.
Result<std::vector<Device>> Instances(const NvmlApi& nvml, nvmlDevice_t gpu, const Device& parent) {
  std::vector<Device> instances;
  unsigned count = 0;
  if (nvml.nvmlDeviceGetMaxMigDeviceCount(gpu, &count) != NVML_SUCCESS) return instances;
  for (unsigned i = 0; i < count; ++i) {
    nvmlDevice_t handle{};
    const nvmlReturn_t found = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, i, &handle);
    if (found == NVML_ERROR_NOT_FOUND || found == NVML_ERROR_INVALID_ARGUMENT) continue;
    if (auto got = nvml.Check(found, "nvmlDeviceGetMigDeviceHandleByIndex"); !got) {
      return std::unexpected(got.error());
    }
    Result<Device> instance = Describe(nvml, handle);
    if (!instance) return std::unexpected(instance.error());
    instance->parent_uuid = parent.uuid;
    instance->index = parent.index;
    instance->minor = parent.minor;
    instance->pci_address = parent.pci_address;
    instance->gpu_instance = InstanceId(nvml.nvmlDeviceGetGpuInstanceId, handle);
    instance->compute_instance = InstanceId(nvml.nvmlDeviceGetComputeInstanceId, handle);
    instances.push_back(std::move(*instance));
  }
  return instances;
}

bool InMigMode(const NvmlApi& nvml, nvmlDevice_t gpu) {
  unsigned current = NVML_DEVICE_MIG_DISABLE;
  unsigned pending = NVML_DEVICE_MIG_DISABLE;
  return nvml.nvmlDeviceGetMigMode(gpu, &current, &pending) == NVML_SUCCESS &&
         current == NVML_DEVICE_MIG_ENABLE;
}

bool Is(const Device& device, const std::string& selected) {
  if (selected.empty()) return false;  // A GPU has neither parent nor profile.
  return selected == device.uuid || selected == device.parent_uuid ||
         selected == std::to_string(device.index) || selected == device.profile();
}

struct Selection {
  std::vector<Device> chosen;
  std::vector<std::string> missing;
};

Result<Selection> Select(const std::vector<Device>& devices,
                         const std::vector<std::string>& select) {
  if (devices.empty()) {
    return Fail(Code::kNotFound, "NVML reports no GPU",
                "check with nvidia-smi that the driver is loaded, and that this container has the "
                "device nodes");
  }
  if (select.empty()) return Selection{.chosen = devices, .missing = {}};
  Selection selection;
  std::copy_if(select.begin(), select.end(), std::back_inserter(selection.missing),
               [&devices](const std::string& one) {
                 return std::ranges::none_of(devices,
                                             [&](const Device& device) { return Is(device, one); });
               });
  std::copy_if(devices.begin(), devices.end(), std::back_inserter(selection.chosen),
               [&select](const Device& device) {
                 return std::any_of(select.begin(), select.end(),
                                    [&](const std::string& one) { return Is(device, one); });
               });
  return selection;
}

// In whole pieces of the granularity in which GPU memory is allocated.
uint64_t WholeBytes(const Device& device, uint64_t reserve_bytes) {
  return (device.total_bytes - std::min(device.total_bytes, reserve_bytes)) / kGranularity *
         kGranularity;
}

uint64_t Units(const Device& device, uint64_t reserve_bytes, uint64_t unit_bytes) {
  return device.total_bytes <= reserve_bytes ? 0
                                             : (device.total_bytes - reserve_bytes) / unit_bytes;
}

uint64_t AllUnits(const std::vector<Device>& devices, uint64_t reserve_bytes, uint64_t unit_bytes) {
  uint64_t units = 0;
  for (const Device& device : devices) units += Units(device, reserve_bytes, unit_bytes);
  return units;
}

binding::DeviceIds Numbered(char kind, uint64_t count) {
  binding::DeviceIds ids;
  for (uint64_t i = 0; i < count; ++i) {
    std::array<char, 16> id{};
    std::snprintf(id.data(), id.size(), "%c%04u", kind, static_cast<unsigned>(i));
    ids.insert(ids.end(), id.data());
  }
  return ids;
}

Result<void> CheckRules(const Rules& rules) {
  if (rules.unit_bytes == 0 || rules.unit_bytes % kGranularity != 0) {
    return Fail(Code::kInvalidArgument,
                Concat("unit: ", rules.unit_bytes, " bytes are not a multiple of 2 MiB"),
                "use for example unit: 1Gi or unit: 256Mi");
  }
  if (rules.tokens == 0) {
    return Fail(Code::kInvalidArgument, "attach-tokens: with 0 no container could attach",
                "use for example attach-tokens: 64");
  }
  return {};
}

}  // namespace

std::string_view Device::profile() const {
  static constexpr std::string_view kMark = " MIG ";
  const size_t at = name.rfind(kMark);
  return parent_uuid.empty() || at == std::string::npos
             ? std::string_view()
             : std::string_view(name).substr(at + kMark.size());
}

namespace {

// A GPU, or in MIG mode its instances.
Result<std::vector<Device>> ReadGpu(const NvmlApi& nvml, unsigned index) {
  nvmlDevice_t handle{};
  if (auto got = nvml.Check(nvml.nvmlDeviceGetHandleByIndex_v2(index, &handle),
                            Concat("nvmlDeviceGetHandleByIndex of ", index));
      !got) {
    return std::unexpected(got.error());
  }
  Result<Device> gpu = Describe(nvml, handle);
  if (!gpu) return std::unexpected(gpu.error());
  gpu->index = index;
  if (auto got = nvml.Check(nvml.nvmlDeviceGetMinorNumber(handle, &gpu->minor),
                            "nvmlDeviceGetMinorNumber");
      !got) {
    return std::unexpected(got.error());
  }
  gpu->pci_address = PciAddress(nvml, handle);
  if (InMigMode(nvml, handle)) return Instances(nvml, handle, *gpu);
  return std::vector<Device>{std::move(*gpu)};
}

// Notes which whole GPUs reach each other over NVLink. A driver that cannot say it, or an error,
// means that they do not.
void ReadNvlink(const NvmlApi& nvml, std::vector<Device>* devices) {
  if (nvml.nvmlDeviceGetP2PStatus == nullptr) return;
  struct Whole {
    Device* device;
    nvmlDevice_t handle;
  };
  std::vector<Whole> whole;
  for (Device& device : *devices) {
    nvmlDevice_t handle{};
    if (device.parent_uuid.empty() &&
        nvml.nvmlDeviceGetHandleByUUID(device.uuid.c_str(), &handle) == NVML_SUCCESS) {
      whole.push_back({&device, handle});
    }
  }
  for (const Whole& from : whole) {
    for (const Whole& to : whole) {
      nvmlGpuP2PStatus_t status = NVML_P2P_STATUS_UNKNOWN;
      if (from.device != to.device &&
          nvml.nvmlDeviceGetP2PStatus(from.handle, to.handle, NVML_P2P_CAPS_INDEX_NVLINK,
                                      &status) == NVML_SUCCESS &&
          status == NVML_P2P_STATUS_OK) {
        from.device->nvlink.insert(to.device->uuid);
      }
    }
  }
}

}  // namespace

Result<std::vector<Device>> ReadDevices(const NvmlApi& nvml, std::vector<std::string>* unread) {
  const auto use = nvml.Use();
  unsigned count = 0;
  if (auto got = nvml.Check(nvml.nvmlDeviceGetCount_v2(&count), "nvmlDeviceGetCount"); !got) {
    return std::unexpected(got.error());
  }
  std::vector<Device> devices;
  std::optional<Status> failed;
  for (unsigned index = 0; index < count; ++index) {
    Result<std::vector<Device>> gpu = ReadGpu(nvml, index);
    if (!gpu) {
      failed = gpu.error();
      if (unread != nullptr) unread->push_back(Concat("GPU ", index, ": ", failed->ToString()));
      continue;
    }
    std::move(gpu->begin(), gpu->end(), std::back_inserter(devices));
  }
  if (devices.empty() && failed) return std::unexpected(*failed);
  ReadNvlink(nvml, &devices);
  return devices;
}

Result<Advertisement> Advertise(const std::vector<Device>& devices, const Rules& rules) {
  if (auto valid = CheckRules(rules); !valid) return std::unexpected(valid.error());
  Result<Selection> selection = Select(devices, rules.select);
  if (!selection) return std::unexpected(selection.error());
  std::vector<Device>* const chosen = &selection->chosen;
  const uint64_t units = AllUnits(*chosen, rules.reserve_bytes, rules.unit_bytes);
  if (units > kMaxIds) {
    uint64_t fits = rules.unit_bytes;
    while (AllUnits(*chosen, rules.reserve_bytes, fits) > kMaxIds) fits *= 2;
    return Fail(Code::kExhausted,
                Concat("unit: ", rules.unit_bytes / kMiB, "Mi makes ", units,
                       " device IDs of gpushm.io/memory; the limit is ", kMaxIds),
                Concat("use unit: ", fits / kMiB, "Mi"));
  }
  const uint64_t tokens = uint64_t{rules.tokens} * chosen->size();
  if (tokens > kMaxIds) {
    return Fail(
        Code::kExhausted,
        Concat("attach-tokens: ", rules.tokens, " for each of ", chosen->size(), " devices makes ",
               tokens, " device IDs of gpushm.io/attach; the limit is ", kMaxIds),
        Concat("use attach-tokens: ", kMaxIds / chosen->size()));
  }
  Advertisement advertisement;
  for (const Device& device : *chosen) {
    advertisement.gpus.push_back(
        {.uuid = device.uuid,
         .units = static_cast<uint32_t>(Units(device, rules.reserve_bytes, rules.unit_bytes)),
         .tokens = rules.tokens,
         .instance = !device.parent_uuid.empty(),
         .bytes = WholeBytes(device, rules.reserve_bytes),
         .nvlink = device.nvlink});
  }
  const bool several = std::ranges::count(*chosen, std::string(), &Device::parent_uuid) > 1;
  const bool linked = std::ranges::any_of(*chosen, [&](const Device& device) {
    return std::ranges::any_of(
        *chosen, [&](const Device& other) { return device.nvlink.contains(other.uuid); });
  });
  advertisement.ids[binding::Resource::kMemory] = Numbered('m', units);
  advertisement.ids[binding::Resource::kAttach] = Numbered('a', tokens);
  advertisement.ids[binding::Resource::kExclusive] = Numbered('x', chosen->size());
  if (several) advertisement.ids[binding::Resource::kGpus] = Numbered('g', tokens);
  if (linked) advertisement.ids[binding::Resource::kNvlink] = Numbered('n', tokens);
  advertisement.devices = std::move(*chosen);
  advertisement.on_node = devices;
  advertisement.missing = std::move(selection->missing);
  return advertisement;
}

}  // namespace gpushm::plugin::inventory
