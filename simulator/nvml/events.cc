// NVML events: the XIDs in faults.yaml. A set sees those that were added after it registered a
// device.
#include "simulator/nvml/nvml.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

using gpushm::sim::CallNvml;
using gpushm::sim::CallNvmlDevice;
using gpushm::sim::Card;
using gpushm::sim::CurrentFaults;
using gpushm::sim::Faults;
using gpushm::sim::Nvml;
using gpushm::sim::Xid;

namespace {

struct EventSet {
  uint64_t generation = 0;
  std::vector<const Card*> cards;
  size_t seen = 0;  // Entries of the list that existed at first or were delivered.
};

// The sets of this nvmlInit, guarded by Nvml's mutex. Never destroyed.
std::vector<std::unique_ptr<EventSet>>& Sets(const Nvml& nvml) {
  static auto* const sets = new std::vector<std::unique_ptr<EventSet>>();
  std::erase_if(*sets, [&](const auto& set) { return set->generation != nvml.generation; });
  return *sets;
}

// Null: this nvmlInit has no such set.
EventSet* FindSet(const Nvml& nvml, nvmlEventSet_t handle) {
  for (const auto& set : Sets(nvml)) {
    if (reinterpret_cast<nvmlEventSet_t>(set.get()) == handle) return set.get();
  }
  return nullptr;
}

bool Names(const Xid& xid, const Card& card) {
  return xid.gpu == card.uuid_text || xid.gpu == std::to_string(card.gpu_index);
}

// NVML's wait fails as soon as one GPU of the set is off the bus.
bool AnyLost(const EventSet& set, const Faults& faults) {
  return std::any_of(set.cards.begin(), set.cards.end(), [&](const Card* card) {
    return faults.IsLost(card->uuid_text, card->gpu_index);
  });
}

// The next event for the set. False: none yet.
bool Next(EventSet& set, const std::vector<Xid>& xids, nvmlEventData_t* data) {
  set.seen = std::min(set.seen, xids.size());  // The list became shorter: what comes next is new.
  while (set.seen < xids.size()) {
    const Xid& xid = xids[set.seen++];
    for (const Card* card : set.cards) {
      if (!Names(xid, *card)) continue;
      *data = {};
      data->device = reinterpret_cast<nvmlDevice_t>(const_cast<Card*>(card));
      data->eventType = nvmlEventTypeXidCriticalError;
      data->eventData = xid.number;
      data->gpuInstanceId = xid.gpu_instance;
      data->computeInstanceId = xid.compute_instance;
      return true;
    }
  }
  return false;
}

}  // namespace

nvmlReturn_t DECLDIR nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device,
                                                      unsigned long long* eventTypes) {
  return CallNvmlDevice("nvmlDeviceGetSupportedEventTypes", device, [&](Nvml&, const Card&) {
    if (eventTypes == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *eventTypes = nvmlEventTypeXidCriticalError;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t DECLDIR nvmlEventSetCreate(nvmlEventSet_t* set) {
  return CallNvml("nvmlEventSetCreate", [&](Nvml& nvml) {
    if (set == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    auto& events = Sets(nvml).emplace_back(std::make_unique<EventSet>());
    events->generation = nvml.generation;
    *set = reinterpret_cast<nvmlEventSet_t>(events.get());
    return NVML_SUCCESS;
  });
}

nvmlReturn_t DECLDIR nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long eventTypes,
                                              nvmlEventSet_t set) {
  return CallNvmlDevice("nvmlDeviceRegisterEvents", device, [&](Nvml& nvml, const Card& card) {
    if (set == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    if ((eventTypes & ~static_cast<unsigned long long>(nvmlEventTypeXidCriticalError)) != 0)
      return NVML_ERROR_NOT_SUPPORTED;
    EventSet* const found = FindSet(nvml, set);
    if (found == nullptr || card.mig) return NVML_ERROR_INVALID_ARGUMENT;
    EventSet& events = *found;
    if (events.cards.empty()) events.seen = CurrentFaults(nvml.state->folder())->xids.size();
    events.cards.push_back(&card);
    return NVML_SUCCESS;
  });
}

nvmlReturn_t DECLDIR nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t* data,
                                         unsigned int timeoutms) {
  constexpr auto kInterval = std::chrono::milliseconds(10);
  const Nvml::Inside waiting;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeoutms);
  for (;;) {
    // Each poll is a call of its own, so that another thread may use NVML meanwhile.
    const nvmlReturn_t result = CallNvml("nvmlEventSetWait_v2", [&](Nvml& nvml) {
      if (set == nullptr || data == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
      EventSet* const events = FindSet(nvml, set);
      if (events == nullptr) return NVML_ERROR_TIMEOUT;  // Like the real one after a new nvmlInit.
      const auto faults = CurrentFaults(nvml.state->folder());
      const bool found = Next(*events, faults->xids, data);
      if (!found && AnyLost(*events, *faults)) return NVML_ERROR_GPU_IS_LOST;
      return found ? NVML_SUCCESS : NVML_ERROR_TIMEOUT;
    });
    if (result != NVML_ERROR_TIMEOUT) return result;
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) return NVML_ERROR_TIMEOUT;
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(kInterval, deadline - now));
  }
}

nvmlReturn_t DECLDIR nvmlEventSetFree(nvmlEventSet_t set) {
  Nvml& nvml = Nvml::Get();
  const std::lock_guard lock(nvml.mutex);
  EventSet* const found = FindSet(nvml, set);
  if (found == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  std::erase_if(Sets(nvml), [&](const auto& one) { return one.get() == found; });
  return NVML_SUCCESS;
}
