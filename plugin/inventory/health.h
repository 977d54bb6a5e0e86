// Watches the health of GPUs and MIG instances through NVML: events as they come, and a look at
// each device in between. What it makes of them is HealthBook's.
//
// Contract
//   (1) An XID that concerns a device turns it unhealthy within kWaitMs; so does a look that finds
//       it gone, within recheck_ms more.
//   (2) NVML that fails as a whole is initialised anew, over and over, as it is while a GPU is lost
//       (NVML does not see a GPU's return otherwise). So others in the process hold NvmlApi::Use.
//   (3) Waiting costs a wake-up every kWaitMs. With looks every second: 3.6 ms of CPU in 10 s for
//       one GPU (H100, driver 580).
//   (4) NVML calls on a sick GPU may hang in the driver. Then only this thread hangs: Look() goes
//       on answering, and SinceLookMs() tells.
//
// Threads: one of its own, which calls back. Everything else from any thread.
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

#include "plugin/inventory/health_book.h"

namespace gpushm::plugin {

class HealthMonitor {
 public:
  using Callback = std::function<void(const HealthChange&)>;

  static constexpr int64_t kWaitMs = 250;
  // While something is unhealthy, looks are at most so far apart.
  static constexpr int64_t kSickRecheckMs = 1000;
  // After one failed look.
  static constexpr int64_t kDoubtMs = 100;
  // Between attempts to initialise NVML anew, doubling.
  static constexpr int64_t kFirstRestartMs = 500;
  static constexpr int64_t kLastRestartMs = 60'000;
  // Between two registrations for events, should waiting for them fail at once every time.
  static constexpr int64_t kRegisterMs = 250;

  // Takes the first look before it returns, and calls back from within for what is unhealthy.
  // `on_change` must not block.
  HealthMonitor(const NvmlApi& nvml, std::vector<Device> devices, HealthRules rules,
                Callback on_change);
  HealthMonitor(const HealthMonitor&) = delete;
  HealthMonitor& operator=(const HealthMonitor&) = delete;
  // Waits for the thread: kWaitMs, if NVML does not hang.
  ~HealthMonitor();

  void SetDevices(std::vector<Device> devices);
  void SetRules(HealthRules rules);

  std::vector<DeviceHealth> Look() const;
  std::vector<XidCount> xids() const;
  // Since the thread last came round; more than a few recheck_ms: NVML hangs.
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
  const Callback on_change_;

  // Of the thread (and the constructor before it).
  std::optional<nvmlEventSet_t> set_;
  std::map<nvmlDevice_t, std::string> registered_;  // Handles in `set_`, and their UUIDs.
  uint64_t registered_at_ = 0;                      // NvmlApi::restarts() then.
  int64_t next_look_ms_ = 0;
  int64_t next_restart_ms_ = 0;  // 0: none planned.
  int64_t next_register_ms_ = 0;
  int64_t restart_wait_ms_ = kFirstRestartMs;
  bool nvml_gone_ = false;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;  // Guarded by mutex_, as all below.
  bool devices_changed_ = false;
  std::vector<Device> devices_;
  HealthBook book_;

  std::atomic<int64_t> looked_ms_{0};
  std::thread thread_;
};

}  // namespace gpushm::plugin
