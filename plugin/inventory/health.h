// Watches the health of GPUs and MIG instances through NVML: events as they come, and a check of
// each device in between. HealthTracker draws the conclusions.
//
// Contract
//   (1) An XID that affects a device makes it unhealthy within kWaitMs. A check that finds the
//       device gone takes at most recheck_ms longer.
//   (2) If NVML as a whole fails, it is initialised again repeatedly, and also while a GPU is lost,
//       because NVML does not see a GPU's return otherwise. So other users in the process hold
//       NvmlApi::Use.
//   (3) Waiting costs one wake-up every kWaitMs. With a check every second it takes 3.6 ms of CPU
//       in 10 s for one GPU (H100, driver 580).
//   (4) NVML calls on an unhealthy GPU may hang in the driver. Then only this thread hangs: Look()
//       still answers, and SinceLookMs() shows the hang.
//
// Threads: one of its own, which runs the callback. Everything else from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "plugin/inventory/health_tracker.h"

namespace gpushm::plugin::inventory {

class HealthMonitor {
 public:
  using Callback = std::function<void(const HealthChange&)>;

  static constexpr int64_t kWaitMs = 250;
  // Largest time between checks while a device is unhealthy.
  static constexpr int64_t kSickRecheckMs = 1000;
  // Time to the second check after a failed one.
  static constexpr int64_t kDoubtMs = 100;
  // Between attempts to initialise NVML again; doubles each time.
  static constexpr int64_t kFirstRestartMs = 500;
  static constexpr int64_t kLastRestartMs = 60'000;
  // Between two registrations for events, in case waiting for them fails immediately every time.
  static constexpr int64_t kRegisterMs = 250;

  // Makes the first check before it returns, and calls back from within for unhealthy devices.
  // `on_change` must not block.
  HealthMonitor(const NvmlApi& nvml, std::vector<Device> devices, HealthRules rules,
                Callback on_change);
  HealthMonitor(const HealthMonitor&) = delete;
  HealthMonitor& operator=(const HealthMonitor&) = delete;
  // Waits for the thread: at most kWaitMs, unless NVML hangs.
  ~HealthMonitor();

  std::vector<DeviceHealth> Look() const;
  std::vector<XidCount> xids() const;
  // Time since the thread's last round. More than a few recheck_ms means that NVML hangs.
  int64_t SinceLookMs() const;

 private:
  void Run();
  void Report(const std::vector<HealthChange>& changes);
  void LookAtAll();
  Probe LookAt(const Device& device, const Probe* gpu) const;
  Probe LookAtGpu(const std::string& uuid) const;
  void Register();
  void FreeSet();
  void WaitForEvents(int64_t wait_ms);
  void TakeEvent(const nvmlEventData_t& event);
  void Reopen(const std::string& why);
  int64_t NextLookMs() const;

  const NvmlApi& nvml_;
  const std::vector<Device> devices_;
  const Callback on_change_;

  // Used by the thread only, and before it by the constructor.
  std::optional<nvmlEventSet_t> set_;
  std::map<nvmlDevice_t, std::string> registered_;  // Handles in `set_`, with their UUIDs.
  uint64_t registered_at_ = 0;                      // Value of NvmlApi::restarts() at that time.
  int64_t next_look_ms_ = 0;
  int64_t next_restart_ms_ = 0;  // 0: not planned.
  int64_t next_register_ms_ = 0;
  int64_t restart_wait_ms_ = kFirstRestartMs;
  bool nvml_gone_ = false;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;  // Guarded by mutex_, like all below.
  HealthTracker tracker_;

  std::atomic<int64_t> looked_ms_{0};
  std::thread thread_;
};

}  // namespace gpushm::plugin::inventory
