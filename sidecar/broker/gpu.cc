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

bool Matches(const DeviceInfo& device, const config::GpuChoice& choice) {
  if (choice.uuid.empty()) return static_cast<uint32_t>(device.device) == choice.index;
  // cuDeviceGetUuid gives a MIG instance its own UUID; NVML writes it with the prefix MIG-.
  const std::string uuid = device.uuid.ToString();
  return choice.uuid.size() == uuid.size() && choice.uuid.substr(4) == uuid.substr(4);
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

Result<Gpu> Gpu::Open(const std::string& driver_folder,
                      const std::optional<config::GpuChoice>& choice) {
  const Result<const CudaApi*> api = CudaApi::Load(driver_folder);
  if (!api) return std::unexpected(api.error());
  Result<std::vector<DeviceInfo>> devices = ListDevices(**api);
  if (!devices) return std::unexpected(devices.error());
  if (devices->empty()) {
    return Fail(Code::kNotFound, "this process sees no GPU",
                "request gpushm.io/memory, or check CUDA_VISIBLE_DEVICES");
  }
  if (!choice && devices->size() > 1) {
    return Fail(Code::kInvalidArgument, Concat("several GPUs are visible: ", Names(*devices)),
                "select one: --gpu 0, or --gpu GPU-...");
  }
  const auto device =
      choice ? std::find_if(devices->begin(), devices->end(),
                            [&](const DeviceInfo& info) { return Matches(info, *choice); })
             : devices->begin();
  if (device == devices->end()) {
    return Fail(Code::kNotFound,
                Concat("gpu: ", choice->uuid.empty() ? std::to_string(choice->index) : choice->uuid,
                       " is not one of ", Names(*devices)),
                "use one of these");
  }
  return Gpu(**api, std::move(*device));
}

Result<UniqueFd> Gpu::Allocate(uint64_t mapped_bytes) const {
  const Result<DeviceMemory> memory = DeviceMemory::Create(*api_, info_.device, mapped_bytes);
  if (!memory) return std::unexpected(memory.error());
  return memory->Export();  // The handle is released; the descriptor keeps the memory.
}

}  // namespace gpushm::broker
