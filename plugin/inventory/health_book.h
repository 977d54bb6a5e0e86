// Which devices are well: the decision alone, from events and looks that somebody else brings.
//
// Pure: no I/O, no clock, no thread.
//
// Invariants
//   (1) A device turns unhealthy by what concerns it or its GPU, and only by that.
//   (2) It turns healthy only after good_probes good looks in a row since the last bad sign, and
//       only once nothing is held against it.
//   (3) Whatever happened, a device that is quiet and looks good turns healthy in the end, unless
//       the hardware itself goes on saying otherwise.
//   (4) What a call returns is exactly what it changed, each device at most once.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/inventory/inventory.h"

namespace gpushm::plugin {

struct HealthRules {
  std::vector<uint32_t> ignore_xids;  // Go before the table of xids.h, ...
  std::vector<uint32_t> fatal_xids;   // ... these even before `ignore_xids`.
  // Between two looks at a GPU: 0.2 ms of CPU each (H100, driver 580).
  uint32_t recheck_ms = 1000;
  uint32_t good_probes = 3;     // Good looks in a row before an unhealthy device is healthy again.
  uint32_t quiet_ms = 600'000;  // Without a new sign, where the driver has no recovery action.

  friend bool operator==(const HealthRules&, const HealthRules&) = default;
};

// One look at a device.
struct Probe {
  enum class Answer {
    kGood,
    kFailed,  // A call failed; once is nothing.
    kLost,    // It is gone, or cannot be used before a reset.
  };
  Answer answer = Answer::kGood;
  std::string error;  // Unless good.
  // What the driver wants done: nvmlDeviceGpuRecoveryAction_t. Absent: this driver has no opinion.
  std::optional<uint32_t> recovery_action;
  std::optional<uint64_t> ecc_errors;  // Uncorrected, since the driver was loaded.
  bool remap_failed = false;
};

struct HealthChange {
  std::string uuid;
  bool healthy = true;
  std::string reason;  // Of an unhealthy one.

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

class HealthBook {
 public:
  explicit HealthBook(HealthRules rules) : rules_(std::move(rules)) {}

  // After a failed look a second one decides.
  static constexpr uint32_t kFailedProbes = 2;
  // Quiet after an XID where the driver has a recovery action, and asks for nothing.
  static constexpr int64_t kSettleMs = 30'000;
  static constexpr int64_t kUnknownQuietMs = 60'000;
  // Each return of an XID doubles its quiet time, so often at most, until it stayed away so long.
  static constexpr uint32_t kDoublings = 4;
  static constexpr int64_t kForgetMs = 24 * 3'600'000;
  // Kinds of XIDs counted for each GPU.
  static constexpr size_t kXidKinds = 128;

  const HealthRules& rules() const { return rules_; }
  void SetRules(HealthRules rules);

  // What is watched from now on. Those that were there keep what is known of them; new ones are
  // healthy until something is known.
  void SetDevices(const std::vector<Device>& devices);

  // `gpu`: UUID of the physical GPU; the instances as in nvmlEventData_t.
  std::vector<HealthChange> OnXid(const std::string& gpu, uint64_t xid, uint32_t gpu_instance,
                                  uint32_t compute_instance, int64_t now_ms);
  // A look at the device; one at NVML worked, then.
  std::vector<HealthChange> OnProbe(const std::string& uuid, const Probe& probe, int64_t now_ms);
  // NVML as a whole fails. `driver_unloaded`: so what comes after is a driver that was loaded anew.
  std::vector<HealthChange> OnNvmlGone(const std::string& reason, bool driver_unloaded);

  std::vector<DeviceHealth> Look() const;  // In the order of SetDevices.
  std::vector<XidCount> xids() const;
  bool AllHealthy() const;
  bool AnyLost() const;
  bool AnyInDoubt() const;  // One failed look: another one should follow soon.

 private:
  // What is held against a device because of an XID, or of ECC errors.
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
    uint32_t good = 0;      // Good looks in a row.
    uint32_t failed = 0;    // Failed ones in a row.
    bool was_lost = false;  // Lost, not only failed.
    std::string lost;       // Why it does not answer; empty: it does.
    std::string nvml_gone;
    bool remap_failed = false;
    std::optional<uint32_t> recovery_action;
    std::optional<uint64_t> ecc_errors;
    std::map<uint64_t, Trouble> troubles;  // By XID.
  };

  void Count(const std::string& gpu, uint64_t xid, int64_t now_ms);
  bool Ignores(uint64_t xid) const;
  static void Raise(State& state, uint64_t xid, bool unknown, int64_t now_ms);
  void TakeGoodProbe(State& state, const Probe& probe, int64_t now_ms) const;
  int64_t QuietMs(const State& state, const Trouble& trouble) const;
  std::string Reason(const State& state) const;
  void Settle(State& state, std::vector<HealthChange>& changes) const;

  HealthRules rules_;
  std::vector<State> states_;
  std::vector<XidCount> counts_;
};

// Whether the driver wants the GPU out of use (nvmlDeviceGpuRecoveryAction_t); what concerns only
// traffic between GPUs does not.
bool NeedsReset(uint32_t recovery_action);

}  // namespace gpushm::plugin
