// What nvmlInit makes, and the common frame of every NVML function. Threads: thread-safe; every
// function runs under the one mutex, except while it waits for events.
#pragma once

#include "simulator/exported_api.h"
// It must be the first include, as exported_api.h explains.

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "simulator/config.h"
#include "simulator/faults.h"
#include "simulator/state.h"

namespace gpushm::sim {

class Nvml {
 public:
  static Nvml& Get();  // Never destroyed.
  nvmlReturn_t Init();
  nvmlReturn_t Enter(const char* function);
  // Blocks for as long as faults.yaml says for the function. Not under the mutex: an unhealthy GPU
  // hangs only the threads that query it.
  void Hang(const char* function);
  const Card* Find(nvmlDevice_t device) const;

  std::mutex mutex;
  std::atomic<int> inside = 0;  // Threads that wait or hang.
  struct Inside {
    Inside() { ++Get().inside; }
    ~Inside() { --Get().inside; }
  };
  int initialised = 0;
  bool stale = false;       // The driver went away; only a new nvmlInit helps.
  uint64_t generation = 0;  // Of nvmlInit; event sets of an earlier one are invalid.
  Machine machine;
  std::vector<const Card*> cards;
  std::unique_ptr<State> state;
};

template <typename Body>
nvmlReturn_t CallNvml(const char* function, Body&& body) noexcept {
  try {
    Nvml& nvml = Nvml::Get();
    nvml.Hang(function);
    const std::lock_guard lock(nvml.mutex);
    const nvmlReturn_t entered = nvml.Enter(function);
    return entered == NVML_SUCCESS ? body(nvml) : entered;
  } catch (...) {
    return NVML_ERROR_UNKNOWN;
  }
}

template <typename Body>
nvmlReturn_t CallNvmlDevice(const char* function, nvmlDevice_t device, Body&& body) noexcept {
  return CallNvml(function, [&](Nvml& nvml) {
    const Card* card = nvml.Find(device);
    if (card == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    if (CurrentFaults(nvml.state->folder())->IsLost(card->uuid_text, card->gpu_index)) {
      return NVML_ERROR_GPU_IS_LOST;
    }
    return body(nvml, *card);
  });
}

}  // namespace gpushm::sim
