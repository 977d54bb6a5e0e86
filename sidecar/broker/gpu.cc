#include "sidecar/broker/gpu.h"

#include <algorithm>
#include <cstdlib>

namespace gpushm::broker {
namespace {

std::string Names(const std::vector<DeviceInfo>& devices) {
  std::string names;
  for (const DeviceInfo& device : devices) {
    names += Concat(names.empty() ? "" : ", ", device.device, " ", device.uuid.ToString(), " (",
                    device.name, ")");
  }
  return names;
}

bool Matches(const DeviceInfo& device, const yaml::GpuChoice& choice) {
  if (choice.uuid.empty()) return static_cast<uint32_t>(device.device) == choice.index;
  // cuDeviceGetUuid gives a MIG instance its own UUID; NVML writes it with the prefix MIG-.
  const std::string uuid = device.uuid.ToString();
  return choice.uuid.size() == uuid.size() && choice.uuid.substr(4) == uuid.substr(4);
}

std::string NameOf(const yaml::GpuChoice& choice) {
  return choice.uuid.empty() ? std::to_string(choice.index) : choice.uuid;
}

// The folder in which the simulated driver keeps its memory; see simulator/README.md.
std::string SimulatedState() {
  const char* const folder = std::getenv("GPUSHM_SIM_DIR");
  return folder == nullptr || *folder == '\0' ? "/var/tmp/gpushm-sim" : folder;
}

}  // namespace

Gpu::Gpu(const CudaApi& api, DeviceInfo info)
    : api_(&api),
      info_(std::move(info)),
      memory_kind_(MemoryKind::Of(api.simulated() ? SimulatedState() : "")) {}

Result<std::vector<Gpu>> Gpu::Open(const std::string& driver_folder,
                                   std::span<const yaml::GpuChoice> choices, uint32_t count) {
  const Result<const CudaApi*> api = CudaApi::Load(driver_folder);
  if (!api) return std::unexpected(api.error());
  const Result<std::vector<DeviceInfo>> devices = ListDevices(**api);
  if (!devices) return std::unexpected(devices.error());
  if (devices->empty()) {
    return Fail(Code::kNotFound, "this process sees no GPU",
                "request gpushm.io/memory, or check CUDA_VISIBLE_DEVICES");
  }
  std::vector<Gpu> gpus;
  if (choices.empty() && devices->size() != count) {
    if (count == 1) {
      return Fail(Code::kInvalidArgument, Concat("several GPUs are visible: ", Names(*devices)),
                  "select one: --gpu 0, or --gpu GPU-...");
    }
    return Fail(Code::kInvalidArgument,
                Concat("gpushm.io/gpus is ", count, ", but this process sees ", devices->size(),
                       devices->size() == 1 ? " GPU: " : " GPUs: ", Names(*devices)),
                devices->size() > count ? "select as many: --gpu 0 --gpu 1, or --gpu GPU-..."
                                        : "make more GPUs visible, or request fewer");
  }
  if (choices.empty()) {
    for (const DeviceInfo& device : *devices) gpus.push_back(Gpu(**api, device));
  }
  for (const yaml::GpuChoice& choice : choices) {
    const auto device = std::ranges::find_if(
        *devices, [&](const DeviceInfo& info) { return Matches(info, choice); });
    if (device == devices->end()) {
      return Fail(Code::kNotFound,
                  Concat("gpu: ", NameOf(choice), " is not one of ", Names(*devices)),
                  "use one of these");
    }
    const bool twice = std::ranges::any_of(
        gpus, [&](const Gpu& gpu) { return gpu.info().device == device->device; });
    if (twice) {
      return Fail(Code::kInvalidArgument,
                  Concat("gpu: ", NameOf(choice), " is named twice: ", device->uuid.ToString()),
                  Concat("name each GPU once: ", Names(*devices)));
    }
    gpus.push_back(Gpu(**api, *device));
  }
  return gpus;
}

Result<UniqueFd> Gpu::Allocate(uint64_t mapped_bytes) const {
  const Result<DeviceMemory> memory = DeviceMemory::Create(*api_, info_.device, mapped_bytes);
  if (!memory) return std::unexpected(memory.error());
  return memory->Export();  // The handle is released; the descriptor keeps the memory.
}

}  // namespace gpushm::broker
