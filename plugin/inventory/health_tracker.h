// Decides which devices are healthy, from events and checks that the caller supplies.
//
// Pure: no I/O, no clock, no threads.
//
// Invariants
//   (1) What affects a device or its GPU makes it unhealthy, and nothing else does.
//   (2) It becomes healthy only after good_probes successful checks in a row since the last bad
//       sign, and only when no trouble is left.
//   (3) Whatever happened, a device that is quiet and passes its checks becomes healthy in the end,
//       unless the hardware still reports otherwise.
//   (4) A call returns exactly what it changed, each device at most once.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/inventory/inventory.h"

namespace gpushm::plugin::inventory {

struct HealthRules {
  std::vector<uint32_t> ignore_xids;  // Override the table of xids.h ...
  std::vector<uint32_t> fatal_xids;   // ... and these override even `ignore_xids`.
  // Between two checks of a GPU; each takes 0.2 ms of CPU (H100, driver 580).
  uint32_t recheck_ms = 1000;
  uint32_t good_probes = 3;     // Successful checks in a row until an unhealthy device is healthy.
  uint32_t quiet_ms = 600'000;  // Without a new sign, if the driver has no recovery action.

  friend bool operator==(const HealthRules&, const HealthRules&) = default;
};

// The result of one check of a device.
struct Probe {
  enum class Answer {
    kGood,
    kFailed,  // A call failed; a single failure has no effect.
    kLost,    // It is gone, or needs a reset before it can be used.
  };
  Answer answer = Answer::kGood;
  std::string error;  // Empty if the check succeeded.
  // The action that the driver requests: nvmlDeviceGpuRecoveryAction_t. Absent: this driver has
  // none.
  std::optional<uint32_t> recovery_action;
  std::optional<uint64_t> ecc_errors;  // Uncorrected errors since the driver was loaded.
  bool remap_failed = false;
};

struct HealthChange {
  std::string uuid;
  bool healthy = true;
  std::string reason;  // Empty if healthy.

  friend bool operator==(const HealthChange&, const HealthChange&) = default;
};

struct DeviceHealth {
  std::string uuid;
  bool healthy = true;
  std::string reason;
};

struct XidCount {
  std::string gpu;  // UUID of the physical GPU.
  uint64_t xid = 0;
  uint64_t count = 0;
  int64_t last_ms = 0;
};

class HealthTracker {
 public:
  // A device is healthy until a sign comes.
  HealthTracker(HealthRules rules, const std::vector<Device>& devices);

  // A second check decides after a failed one.
  static constexpr uint32_t kFailedProbes = 2;
  // Quiet time after an XID if the driver has a recovery action, and requests nothing.
  static constexpr int64_t kSettleMs = 30'000;
  static constexpr int64_t kUnknownQuietMs = 60'000;
  // Each return of an XID doubles its quiet time, at most this many times, until the XID stayed
  // away for that time.
  static constexpr uint32_t kDoublings = 4;
  static constexpr int64_t kForgetMs = 24 * 3'600'000;
  // Largest number of different XIDs counted for each GPU.
  static constexpr size_t kXidKinds = 128;

  const HealthRules& rules() const { return rules_; }

  // `gpu`: UUID of the physical GPU. The instances are as in nvmlEventData_t.
  std::vector<HealthChange> OnXid(const std::string& gpu, uint64_t xid, uint32_t gpu_instance,
                                  uint32_t compute_instance, int64_t now_ms);
  // A check of the device, which implies that NVML itself worked.
  std::vector<HealthChange> OnProbe(const std::string& uuid, const Probe& probe, int64_t now_ms);
  // NVML as a whole fails. `driver_unloaded`: whatever comes after is a newly loaded driver.
  std::vector<HealthChange> OnNvmlGone(const std::string& reason, bool driver_unloaded);

  std::vector<DeviceHealth> Look() const;  // In the order of `devices`.
  std::vector<XidCount> xids() const;
  bool AllHealthy() const;
  bool AnyLost() const;
  bool AnyInDoubt() const;  // After one failed check; another should follow soon.

 private:
  // A reason to distrust a device, from an XID or from ECC errors.
  struct Trouble {
    bool active = false;
    bool reset_seen = false;
    bool unknown = false;
    uint32_t returns = 0;
    int64_t last_ms = 0;
  };
  struct State {
    std::string uuid;
    std::string gpu;
    uint32_t gpu_instance = kNoInstance;
    uint32_t compute_instance = kNoInstance;
    bool healthy = true;
    uint32_t good = 0;      // Successful checks in a row.
    uint32_t failed = 0;    // Failed checks in a row.
    bool was_lost = false;  // Lost, not only failed.
    std::string lost;       // Why it does not answer; empty if it does.
    std::string nvml_gone;
    bool remap_failed = false;
    std::optional<uint32_t> recovery_action;
    std::optional<uint64_t> ecc_errors;
    std::map<uint64_t, Trouble> troubles;  // Keyed by XID.
  };

  void Count(const std::string& gpu, uint64_t xid, int64_t now_ms);
  bool Ignores(uint64_t xid) const;
  static void Raise(State& state, uint64_t xid, bool unknown, int64_t now_ms);
  void TakeGoodProbe(State& state, const Probe& probe, int64_t now_ms) const;
  int64_t QuietMs(const State& state, const Trouble& trouble) const;
  std::string Reason(const State& state) const;
  void Settle(State& state, std::vector<HealthChange>& changes) const;

  const HealthRules rules_;
  std::vector<State> states_;
  std::vector<XidCount> counts_;
};

// Whether the driver requests that the GPU be taken out of use (nvmlDeviceGpuRecoveryAction_t).
// Actions that concern only traffic between GPUs do not count.
bool NeedsReset(uint32_t recovery_action);

}  // namespace gpushm::plugin::inventory
