// Faults that a test injects while the program runs: faults.yaml of the state folder, or
// GPUSHM_SIM_FAULT (the same YAML as text, or an absolute path). README.md documents the format.
//
// Threads: thread-safe; the file is read again after it has changed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm::sim {

struct Xid {
  std::string gpu;  // UUID, or the index as text.
  uint64_t number = 0;
  // For a GPU in MIG mode: the instance to which the XID is attributed. ~0: none.
  uint32_t gpu_instance = ~0U;
  uint32_t compute_instance = ~0U;
};

// A GPU's health as NVML reports it.
struct GpuHealth {
  std::string gpu;  // UUID, or the index as text.
  uint64_t ecc_uncorrected = 0;
  bool remap_pending = false;
  bool remap_failed = false;
  uint32_t recovery_action = 0;  // nvmlDeviceGpuRecoveryAction_t.
};

// A GPU's sensors, with the names and units of README.md. A sensor without a key is not supported.
struct GpuSensors {
  std::string gpu;  // UUID, or the index as text.
  std::map<std::string, double, std::less<>> values;

  std::optional<double> Value(std::string_view name) const;
};

struct Faults {
  std::map<std::string, int> results;  // Function -> the CUresult or nvmlReturn_t that it returns.
  std::map<std::string, uint64_t> hang_ms;  // Function -> its delay; "*": all functions.
  std::vector<Xid> xids;
  std::vector<std::string> lost;  // GPUs that fell off the bus.

  std::vector<GpuHealth> health;
  std::vector<GpuSensors> sensors;
  bool driver_gone = false;  // NVML finds no driver, and all earlier handles are invalid.
  std::vector<std::string> unsupported;  // NVML functions that return NOT_SUPPORTED.

  GpuHealth HealthOf(const std::string& uuid, uint32_t index) const;
  GpuSensors SensorsOf(const std::string& uuid, uint32_t index) const;
  bool IsLost(const std::string& uuid, uint32_t index) const;
};

// Never null. A malformed file is reported on stderr once and injects nothing.
std::shared_ptr<const Faults> CurrentFaults(const std::string& folder);

// False: it is malformed; `error` says where.
bool ParseFaults(const std::string& text, Faults* faults, std::string* error);

}  // namespace gpushm::sim
