// NVML's view of a GPU's health and of MIG instances, from faults.yaml and cards.yaml.
#include "simulator/nvml/nvml.h"

using gpushm::sim::CallNvmlDevice;
using gpushm::sim::Card;
using gpushm::sim::CurrentFaults;
using gpushm::sim::GpuHealth;
using gpushm::sim::Nvml;

namespace {

GpuHealth HealthOf(const Nvml& nvml, const Card& card) {
  return CurrentFaults(nvml.state->folder())->HealthOf(card.uuid_text, card.gpu_index);
}

}  // namespace

nvmlReturn_t DECLDIR nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int* id) {
  return CallNvmlDevice("nvmlDeviceGetGpuInstanceId", device, [&](Nvml&, const Card& card) {
    if (id == nullptr || !card.mig) return NVML_ERROR_INVALID_ARGUMENT;
    *id = card.gpu_instance;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t DECLDIR nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int* id) {
  return CallNvmlDevice("nvmlDeviceGetComputeInstanceId", device, [&](Nvml&, const Card& card) {
    if (id == nullptr || !card.mig) return NVML_ERROR_INVALID_ARGUMENT;
    *id = 0;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t DECLDIR nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int* corrRows,
                                               unsigned int* uncRows, unsigned int* isPending,
                                               unsigned int* failureOccurred) {
  return CallNvmlDevice("nvmlDeviceGetRemappedRows", device, [&](Nvml& nvml, const Card& card) {
    if (corrRows == nullptr || uncRows == nullptr || isPending == nullptr ||
        failureOccurred == nullptr) {
      return NVML_ERROR_INVALID_ARGUMENT;
    }
    const GpuHealth health = HealthOf(nvml, card);
    *corrRows = *uncRows = 0;
    *isPending = health.remap_pending ? 1 : 0;
    *failureOccurred = health.remap_failed ? 1 : 0;
    return NVML_SUCCESS;
  });
}

// Only GPUs before Ampere retire pages; an H100 gives the same answer.
nvmlReturn_t DECLDIR nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device,
                                                            nvmlEnableState_t*) {
  return CallNvmlDevice("nvmlDeviceGetRetiredPagesPendingStatus", device,
                        [](Nvml&, const Card&) { return NVML_ERROR_NOT_SUPPORTED; });
}
