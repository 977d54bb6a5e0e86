// NVML on the same state folder. Functions that have no meaning here return NOT_SUPPORTED.
#include "simulator/nvml/nvml.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

namespace gpushm::sim {

Nvml& Nvml::Get() {
  static Nvml* const nvml = new Nvml();
  return *nvml;
}

nvmlReturn_t Nvml::Init() {
  const std::lock_guard lock(mutex);
  if (CurrentFaults(StateFolder())->driver_gone) return NVML_ERROR_DRIVER_NOT_LOADED;
  if (initialised++ > 0) return NVML_SUCCESS;
  stale = false;
  ++generation;
  std::string error;
  auto made = std::make_unique<State>(StateFolder());
  if (!LoadMachine(made->folder(), &machine, &error) || !made->Prepare(&error)) {
    std::fprintf(stderr, "gpushm simulated NVML: %s\n", error.c_str());
    initialised = 0;
    return NVML_ERROR_DRIVER_NOT_LOADED;
  }
  cards.clear();
  for (const size_t index : VisibleToNvml(machine)) cards.push_back(&machine.cards[index]);
  state = std::move(made);
  return NVML_SUCCESS;
}

nvmlReturn_t Nvml::Enter(const char* function) {
  if (initialised == 0) return NVML_ERROR_UNINITIALIZED;
  const auto faults = CurrentFaults(state->folder());
  stale = stale || faults->driver_gone;
  if (stale) return NVML_ERROR_UNKNOWN;
  if (std::find(faults->unsupported.begin(), faults->unsupported.end(), function) !=
      faults->unsupported.end()) {
    return NVML_ERROR_NOT_SUPPORTED;
  }
  const auto result = faults->results.find(function);
  return result == faults->results.end() ? NVML_SUCCESS : static_cast<nvmlReturn_t>(result->second);
}

void Nvml::Hang(const char* function) {
  constexpr auto kInterval = std::chrono::milliseconds(5);
  std::string folder;
  {
    const std::lock_guard lock(mutex);
    if (initialised == 0) return;
    folder = state->folder();
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto hangs = [&] {
    const auto faults = CurrentFaults(folder);
    const auto found = faults->hang_ms.find(function);
    return found != faults->hang_ms.end() &&
           std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(found->second);
  };
  if (!hangs()) return;
  const Inside hanging;
  while (hangs()) std::this_thread::sleep_for(kInterval);
}

const Card* Nvml::Find(nvmlDevice_t device) const {
  for (const Card* card : cards) {
    if (reinterpret_cast<const void*>(card) == reinterpret_cast<const void*>(device)) return card;
  }
  return nullptr;
}

namespace {

nvmlDevice_t HandleOf(const Card* card) {
  return reinterpret_cast<nvmlDevice_t>(const_cast<Card*>(card));
}

nvmlReturn_t CopyText(const std::string& text, char* target, unsigned int length) {
  if (target == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (text.size() >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(target, text.c_str(), text.size() + 1);
  return NVML_SUCCESS;
}

// The MIG instances of a GPU, or the GPUs themselves if parent is null.
std::vector<const Card*> Children(const Nvml& nvml, const Card* parent) {
  std::vector<const Card*> found;
  for (const Card* card : nvml.cards) {
    const bool wanted =
        parent == nullptr ? !card->mig : card->mig && card->gpu_index == parent->gpu_index;
    if (wanted) found.push_back(card);
  }
  return found;
}

Usage UsageOf(const Nvml& nvml, const Card& card) {
  Usage usage = nvml.state->Probe(card);
  if (!card.mig_mode) return usage;
  // A GPU cut into instances: the sum of their use.
  for (const Card* instance : Children(nvml, &card)) {
    usage.used_bytes += nvml.state->Probe(*instance).used_bytes;
  }
  return usage;
}

// Only processes with a context: a holder without one is invisible, as on the real driver. The PIDs
// are those in the processes' own namespaces.
nvmlReturn_t ListProcesses(const Nvml& nvml, const Card& card, bool mps_only, unsigned* count,
                           nvmlProcessInfo_t* infos) {
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const gpushm::sim::Usage usage = nvml.state->Probe(card);
  const unsigned room = infos == nullptr ? 0 : *count;
  unsigned found = 0;
  for (const gpushm::sim::Holder& holder : usage.holders) {
    if (!holder.has_context || (mps_only && !holder.mps)) continue;
    if (found < room) {
      infos[found] = {};
      infos[found].pid = static_cast<unsigned>(holder.pid);
      infos[found].usedGpuMemory = holder.bytes;
      infos[found].gpuInstanceId = infos[found].computeInstanceId = ~0U;
    }
    ++found;
  }
  *count = found;
  return found <= room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

}  // namespace
}  // namespace gpushm::sim

using gpushm::sim::CallNvml;
using gpushm::sim::CallNvmlDevice;
using gpushm::sim::Card;
using gpushm::sim::Nvml;

nvmlReturn_t DECLDIR nvmlInit_v2(void) {
  try {
    return Nvml::Get().Init();
  } catch (...) {
    return NVML_ERROR_UNKNOWN;
  }
}

nvmlReturn_t DECLDIR nvmlShutdown(void) {
  Nvml& nvml = Nvml::Get();
  // Like the real one, which hangs while another thread is inside.
  while (nvml.inside > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::lock_guard lock(nvml.mutex);
  if (nvml.initialised == 0) return NVML_ERROR_UNINITIALIZED;
  --nvml.initialised;
  return NVML_SUCCESS;
}

const DECLDIR char* nvmlErrorString(nvmlReturn_t result) {
  switch (result) {
    case NVML_SUCCESS:
      return "success";
    case NVML_ERROR_UNINITIALIZED:
      return "not initialised";
    case NVML_ERROR_INVALID_ARGUMENT:
      return "invalid argument";
    case NVML_ERROR_NOT_SUPPORTED:
      return "not supported";
    case NVML_ERROR_NOT_FOUND:
      return "not found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
      return "insufficient size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
      return "driver not loaded";
    case NVML_ERROR_TIMEOUT:
      return "timeout";
    case NVML_ERROR_GPU_IS_LOST:
      return "GPU is lost";
    default:
      return "unknown error";
  }
}

nvmlReturn_t DECLDIR nvmlSystemGetDriverVersion(char* version, unsigned int length) {
  return CallNvml("nvmlSystemGetDriverVersion", [&](Nvml&) {
    return gpushm::sim::CopyText("580.0-gpushm-sim", version, length);
  });
}

nvmlReturn_t DECLDIR nvmlDeviceGetCount_v2(unsigned int* deviceCount) {
  return CallNvml("nvmlDeviceGetCount_v2", [&](Nvml& nvml) {
    if (deviceCount == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *deviceCount = static_cast<unsigned>(gpushm::sim::Children(nvml, nullptr).size());
    return NVML_SUCCESS;
  });
}

nvmlReturn_t DECLDIR nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  return CallNvml("nvmlDeviceGetHandleByIndex_v2", [&](Nvml& nvml) {
    const auto gpus = gpushm::sim::Children(nvml, nullptr);
    if (device == nullptr || index >= gpus.size()) return NVML_ERROR_INVALID_ARGUMENT;
    *device = gpushm::sim::HandleOf(gpus[index]);
    return NVML_SUCCESS;
  });
}

nvmlReturn_t DECLDIR nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  return CallNvml("nvmlDeviceGetHandleByUUID", [&](Nvml& nvml) {
    if (uuid == nullptr || device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    for (const Card* card : nvml.cards) {
      if (card->uuid_text != uuid) continue;
      *device = gpushm::sim::HandleOf(card);
      return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
  });
}

nvmlReturn_t DECLDIR nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned int length) {
  return CallNvmlDevice("nvmlDeviceGetUUID", device, [&](Nvml&, const Card& card) {
    return gpushm::sim::CopyText(card.uuid_text, uuid, length);
  });
}

nvmlReturn_t DECLDIR nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned int length) {
  return CallNvmlDevice("nvmlDeviceGetName", device, [&](Nvml&, const Card& card) {
    return gpushm::sim::CopyText(card.name, name, length);
  });
}

nvmlReturn_t DECLDIR nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int* index) {
  return CallNvmlDevice("nvmlDeviceGetIndex", device, [&](Nvml& nvml, const Card& card) {
    if (index == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    const Card* parent = nullptr;
    for (const Card* other : nvml.cards) {
      if (card.mig && !other->mig && other->gpu_index == card.gpu_index) parent = other;
    }
    const auto siblings = gpushm::sim::Children(nvml, parent);
    for (size_t i = 0; i < siblings.size(); ++i) {
      if (siblings[i] == &card) *index = static_cast<unsigned>(i);
    }
    return NVML_SUCCESS;
  });
}

nvmlReturn_t DECLDIR nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int* minorNumber) {
  return CallNvmlDevice("nvmlDeviceGetMinorNumber", device, [&](Nvml&, const Card& card) {
    if (minorNumber == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *minorNumber = card.gpu_index;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t DECLDIR nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  return CallNvmlDevice("nvmlDeviceGetMemoryInfo", device, [&](Nvml& nvml, const Card& card) {
    if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    const uint64_t used = gpushm::sim::UsageOf(nvml, card).used_bytes;
    memory->total = card.memory_bytes;
    memory->used = used;
    memory->free = used < card.memory_bytes ? card.memory_bytes - used : 0;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t DECLDIR nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return CallNvmlDevice("nvmlDeviceGetPciInfo_v3", device, [&](Nvml&, const Card& card) {
    if (pci == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *pci = {};
    pci->bus = card.gpu_index + 1;
    std::snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", pci->bus & 0xFFU);
    std::snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus & 0xFFU);
    return NVML_SUCCESS;
  });
}

nvmlReturn_t DECLDIR nvmlDeviceGetP2PStatus(nvmlDevice_t device1, nvmlDevice_t device2,
                                            nvmlGpuP2PCapsIndex_t p2pIndex,
                                            nvmlGpuP2PStatus_t* p2pStatus) {
  return CallNvmlDevice("nvmlDeviceGetP2PStatus", device1, [&](Nvml& nvml, const Card& card) {
    const Card* const other = nvml.Find(device2);
    if (p2pStatus == nullptr || other == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    const bool reached = card.CanReach(*other);
    const bool nvlink = reached && card.nvlink && other->nvlink;
    *p2pStatus = (p2pIndex == NVML_P2P_CAPS_INDEX_NVLINK ? nvlink : reached)
                     ? NVML_P2P_STATUS_OK
                     : NVML_P2P_STATUS_NOT_SUPPORTED;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t DECLDIR nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int* currentMode,
                                          unsigned int* pendingMode) {
  return CallNvmlDevice("nvmlDeviceGetMigMode", device, [&](Nvml&, const Card& card) {
    if (currentMode == nullptr || pendingMode == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    if (card.mig) return NVML_ERROR_INVALID_ARGUMENT;
    *currentMode = *pendingMode = card.mig_mode ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t DECLDIR nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int* count) {
  return CallNvmlDevice("nvmlDeviceGetMaxMigDeviceCount", device, [&](Nvml&, const Card& card) {
    constexpr unsigned kMost = 7;
    if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *count = card.mig ? 0 : kMost;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t DECLDIR nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                         nvmlDevice_t* migDevice) {
  return CallNvmlDevice("nvmlDeviceGetMigDeviceHandleByIndex", device,
                        [&](Nvml& nvml, const Card& card) {
                          if (migDevice == nullptr || card.mig) return NVML_ERROR_INVALID_ARGUMENT;
                          const auto instances = gpushm::sim::Children(nvml, &card);
                          if (index >= instances.size()) return NVML_ERROR_NOT_FOUND;
                          *migDevice = gpushm::sim::HandleOf(instances[index]);
                          return NVML_SUCCESS;
                        });
}

nvmlReturn_t DECLDIR nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device,
                                                             unsigned int* infoCount,
                                                             nvmlProcessInfo_t* infos) {
  return CallNvmlDevice("nvmlDeviceGetComputeRunningProcesses_v3", device,
                        [&](Nvml& nvml, const Card& card) {
                          return gpushm::sim::ListProcesses(nvml, card, false, infoCount, infos);
                        });
}

nvmlReturn_t DECLDIR nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device,
                                                                unsigned int* infoCount,
                                                                nvmlProcessInfo_t* infos) {
  return CallNvmlDevice("nvmlDeviceGetMPSComputeRunningProcesses_v3", device,
                        [&](Nvml& nvml, const Card& card) {
                          return gpushm::sim::ListProcesses(nvml, card, true, infoCount, infos);
                        });
}
