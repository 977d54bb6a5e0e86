#include "plugin/inventory/health.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "platform/base/clock.h"

namespace gpushm::plugin::inventory {
namespace {

// Supported by drivers since R565; headers of CUDA 12.6 and older lack both.
constexpr unsigned kRecoveryActionField = 230;  // NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
constexpr unsigned long long kRecoveryActionEvent = 0x8000ULL;  // nvmlEventTypeGpuRecoveryAction

constexpr unsigned long long kWantedEvents =
    nvmlEventTypeXidCriticalError | nvmlEventTypeDoubleBitEccError | kRecoveryActionEvent;
// Events read in a row before the devices are checked.
constexpr int kEventsPerWake = 64;

int64_t NowMs() { return MonotonicNs() / 1'000'000; }

Probe Failed(const NvmlApi& nvml, nvmlReturn_t result, std::string_view call) {
  Probe probe;
  switch (result) {
    case NVML_ERROR_GPU_IS_LOST:
    case NVML_ERROR_RESET_REQUIRED:
    case NVML_ERROR_NOT_FOUND:         // A known UUID: unplugged, or MIG was reconfigured.
    case NVML_ERROR_INVALID_ARGUMENT:  // A handle that was valid a moment ago.
    case NVML_ERROR_GPU_NOT_FOUND:
      probe.answer = Probe::Answer::kLost;
      break;
    default:
      probe.answer = Probe::Answer::kFailed;
  }
  probe.error = Concat(call, ": ", nvml.nvmlErrorString(result));
  return probe;
}

// Queries the device itself; NVML answers UUID, name and PCI address from its cache.
Probe Ask(const NvmlApi& nvml, const std::string& uuid, nvmlDevice_t* handle) {
  nvmlReturn_t result = nvml.nvmlDeviceGetHandleByUUID(uuid.c_str(), handle);
  if (result != NVML_SUCCESS) return Failed(nvml, result, "nvmlDeviceGetHandleByUUID");
  nvmlMemory_t memory{};
  result = nvml.nvmlDeviceGetMemoryInfo(*handle, &memory);
  // NOT_SUPPORTED: a GPU without memory of its own.
  if (result == NVML_SUCCESS || result == NVML_ERROR_NOT_SUPPORTED) return {};
  return Failed(nvml, result, "nvmlDeviceGetMemoryInfo");
}

std::optional<uint32_t> RecoveryAction(const NvmlApi& nvml, nvmlDevice_t gpu) {
  if (nvml.nvmlDeviceGetFieldValues == nullptr) return std::nullopt;
  nvmlFieldValue_t value{};
  value.fieldId = kRecoveryActionField;
  if (nvml.nvmlDeviceGetFieldValues(gpu, 1, &value) != NVML_SUCCESS ||
      value.nvmlReturn != NVML_SUCCESS || value.valueType != NVML_VALUE_TYPE_UNSIGNED_INT) {
    return std::nullopt;
  }
  return value.value.uiVal;
}

std::optional<uint64_t> EccErrors(const NvmlApi& nvml, nvmlDevice_t gpu) {
  unsigned long long count = 0;
  if (nvml.nvmlDeviceGetTotalEccErrors == nullptr ||
      nvml.nvmlDeviceGetTotalEccErrors(gpu, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC,
                                       &count) != NVML_SUCCESS) {
    return std::nullopt;
  }
  return count;
}

// A remapping or retirement that waits for the next reset is not a failure, and is not queried.
bool RemapFailed(const NvmlApi& nvml, nvmlDevice_t gpu) {
  unsigned corrected = 0;
  unsigned uncorrected = 0;
  unsigned pending = 0;
  unsigned failed = 0;
  return nvml.nvmlDeviceGetRemappedRows != nullptr &&
         nvml.nvmlDeviceGetRemappedRows(gpu, &corrected, &uncorrected, &pending, &failed) ==
             NVML_SUCCESS &&
         failed != 0;
}

// Whether NVML as a whole answers.
nvmlReturn_t CountGpus(const NvmlApi& nvml) {
  const auto use = nvml.Use();
  unsigned count = 0;
  return nvml.nvmlDeviceGetCount_v2(&count);
}

nvmlReturn_t WaitForOne(const NvmlApi& nvml, nvmlEventSet_t set, unsigned timeout_ms,
                        nvmlEventData_t* event) {
  const auto use = nvml.Use();
  return nvml.nvmlEventSetWait_v2(set, event, timeout_ms);
}

const std::string& GpuOf(const Device& device) {
  return device.parent_uuid.empty() ? device.uuid : device.parent_uuid;
}

}  // namespace

HealthMonitor::HealthMonitor(const NvmlApi& nvml, std::vector<Device> devices, HealthRules rules,
                             Callback on_change)
    : nvml_(nvml),
      devices_(std::move(devices)),
      on_change_(std::move(on_change)),
      tracker_(std::move(rules), devices_) {
  Register();
  LookAtAll();
  looked_ms_ = NowMs();
  thread_ = std::thread([this] { Run(); });
}

HealthMonitor::~HealthMonitor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  FreeSet();
}

std::vector<DeviceHealth> HealthMonitor::Look() const {
  const std::lock_guard lock(mutex_);
  return tracker_.Look();
}

std::vector<XidCount> HealthMonitor::xids() const {
  const std::lock_guard lock(mutex_);
  return tracker_.xids();
}

int64_t HealthMonitor::SinceLookMs() const { return NowMs() - looked_ms_.load(); }

void HealthMonitor::Report(const std::vector<HealthChange>& changes) {
  for (const HealthChange& change : changes) on_change_(change);
}

void HealthMonitor::Run() {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    const bool anew = nvml_.restarts() != registered_at_;
    if (anew) Register();
    if (anew || NowMs() >= next_look_ms_) LookAtAll();
    looked_ms_ = NowMs();
    WaitForEvents(std::clamp<int64_t>(next_look_ms_ - NowMs(), 0, kWaitMs));
  }
}

// Registers an event set for the devices that answer. Without one, the checks go on.
void HealthMonitor::Register() {
  FreeSet();
  next_register_ms_ = NowMs() + kRegisterMs;
  const auto use = nvml_.Use();
  registered_at_ = nvml_.restarts();
  nvmlEventSet_t set{};
  if (nvml_.nvmlEventSetCreate(&set) != NVML_SUCCESS) return;
  std::vector<std::string> gpus;
  for (const Device& device : devices_) gpus.push_back(GpuOf(device));
  std::ranges::sort(gpus);
  gpus.erase(std::ranges::unique(gpus).begin(), gpus.end());
  for (const std::string& uuid : gpus) {
    nvmlDevice_t gpu{};
    unsigned long long types = 0;
    if (Ask(nvml_, uuid, &gpu).answer != Probe::Answer::kGood ||
        nvml_.nvmlDeviceGetSupportedEventTypes(gpu, &types) != NVML_SUCCESS ||
        (types & kWantedEvents) == 0 ||
        nvml_.nvmlDeviceRegisterEvents(gpu, types & kWantedEvents, set) != NVML_SUCCESS) {
      continue;
    }
    registered_[gpu] = uuid;
  }
  if (registered_.empty()) {
    nvml_.nvmlEventSetFree(set);
    return;
  }
  set_ = set;
}

void HealthMonitor::FreeSet() {
  const auto use = nvml_.Use();
  // A set from before a restart was freed by the shutdown.
  if (set_ && nvml_.restarts() == registered_at_) nvml_.nvmlEventSetFree(*set_);
  set_.reset();
  registered_.clear();
}

Probe HealthMonitor::LookAtGpu(const std::string& uuid) const {
  const auto use = nvml_.Use();
  nvmlDevice_t gpu{};
  Probe probe = Ask(nvml_, uuid, &gpu);
  if (probe.answer != Probe::Answer::kGood) return probe;
  probe.recovery_action = RecoveryAction(nvml_, gpu);
  probe.ecc_errors = EccErrors(nvml_, gpu);
  probe.remap_failed = RemapFailed(nvml_, gpu);
  return probe;
}

Probe HealthMonitor::LookAt(const Device& device, const Probe* gpu) const {
  if (device.parent_uuid.empty() || gpu->answer != Probe::Answer::kGood) return *gpu;
  const auto use = nvml_.Use();
  nvmlDevice_t instance{};
  const Probe own = Ask(nvml_, device.uuid, &instance);
  return own.answer == Probe::Answer::kGood ? *gpu : own;
}

void HealthMonitor::LookAtAll() {
  if (const nvmlReturn_t result = CountGpus(nvml_); result != NVML_SUCCESS) {
    return Reopen(Concat("nvmlDeviceGetCount: ", nvml_.nvmlErrorString(result)));
  }
  nvml_gone_ = false;
  std::map<std::string, Probe> gpus;
  std::vector<HealthChange> changes;
  for (const Device& device : devices_) {
    const auto [gpu, first] = gpus.try_emplace(GpuOf(device));
    if (first) gpu->second = LookAtGpu(gpu->first);
    const Probe probe = LookAt(device, &gpu->second);
    const std::lock_guard lock(mutex_);
    const auto changed = tracker_.OnProbe(device.uuid, probe, NowMs());
    changes.insert(changes.end(), changed.begin(), changed.end());
  }
  Report(changes);
  next_look_ms_ = NextLookMs();
  bool lost = false;
  {
    const std::lock_guard lock(mutex_);
    lost = tracker_.AnyLost();
  }
  const int64_t now_ms = NowMs();
  if (!lost) {
    next_restart_ms_ = 0;
    restart_wait_ms_ = kFirstRestartMs;
    // A GPU that came back must be registered for events again.
    if (registered_.size() < gpus.size() && now_ms >= next_register_ms_) Register();
  } else if (next_restart_ms_ == 0) {
    next_restart_ms_ = NowMs() + restart_wait_ms_;
  } else if (now_ms >= next_restart_ms_) {
    Reopen("");
  }
}

int64_t HealthMonitor::NextLookMs() const {
  const std::lock_guard lock(mutex_);
  int64_t wait_ms = tracker_.rules().recheck_ms;
  if (!tracker_.AllHealthy()) wait_ms = std::min(wait_ms, kSickRecheckMs);
  if (tracker_.AnyInDoubt()) wait_ms = std::min(wait_ms, kDoubtMs);
  return NowMs() + wait_ms;
}

// `why`: NVML as a whole fails. Empty: only a GPU is lost.
void HealthMonitor::Reopen(const std::string& why) {
  const int64_t now_ms = NowMs();
  if (nvml_gone_ && now_ms < next_restart_ms_) {
    next_look_ms_ = next_restart_ms_;
    return;
  }
  FreeSet();
  const nvmlReturn_t restarted = nvml_.Restart();
  next_restart_ms_ = now_ms + restart_wait_ms_;
  restart_wait_ms_ = std::min(restart_wait_ms_ * 2, kLastRestartMs);
  if (restarted == NVML_SUCCESS) {
    nvml_gone_ = false;
    Register();
    if (!why.empty()) next_look_ms_ = now_ms + kDoubtMs;
    return;
  }
  if (restarted == NVML_ERROR_IN_USE && why.empty()) return Register();
  nvml_gone_ = true;
  next_look_ms_ = next_restart_ms_;
  std::vector<HealthChange> changes;
  {
    const std::lock_guard lock(mutex_);
    changes = tracker_.OnNvmlGone(Concat(why.empty() ? "" : Concat(why, "; "),
                                         "nvmlInit: ", nvml_.nvmlErrorString(restarted)),
                                  restarted == NVML_ERROR_DRIVER_NOT_LOADED);
  }
  Report(changes);
}

void HealthMonitor::WaitForEvents(int64_t wait_ms) {
  if (!set_) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(wait_ms), [this] { return stopping_; });
    return;
  }
  bool any = false;
  for (int i = 0; i < kEventsPerWake; ++i) {
    nvmlEventData_t event{};
    const auto timeout_ms = static_cast<unsigned>(any ? 0 : wait_ms);
    const nvmlReturn_t result = WaitForOne(nvml_, *set_, timeout_ms, &event);
    if (result == NVML_SUCCESS) {
      any = true;
      TakeEvent(event);
      continue;
    }
    if (result == NVML_ERROR_TIMEOUT) break;
    // A set that contains a lost GPU fails immediately every time, and an NVML that somebody else
    // shut down knows none of its sets. The check that follows tells the two apart and registers
    // the other devices again.
    FreeSet();
    any = true;
    break;
  }
  if (any) {
    if (!set_ && NowMs() >= next_register_ms_) Register();
    LookAtAll();
  }
}

void HealthMonitor::TakeEvent(const nvmlEventData_t& event) {
  if (event.eventType != nvmlEventTypeXidCriticalError) return;  // The check that follows decides.
  const auto known = registered_.find(event.device);
  if (known == registered_.end()) return;
  std::vector<HealthChange> changes;
  {
    const std::lock_guard lock(mutex_);
    changes = tracker_.OnXid(known->second, event.eventData, event.gpuInstanceId,
                             event.computeInstanceId, NowMs());
  }
  Report(changes);
}

}  // namespace gpushm::plugin::inventory
