// NVML, loaded at run time like the driver: what the machine's GPUs are and how full they are.
// Threads: any; the table is immutable after Load.
#pragma once

#include <nvml.h>

#include <atomic>
#include <cstdint>
#include <shared_mutex>
#include <string>
#include <string_view>

#include "platform/base/status.h"

namespace gpushm {

// clang-format off
#define GPUSHM_NVML_FUNCTIONS(X)                                                                  \
  X(nvmlInit_v2) X(nvmlShutdown) X(nvmlErrorString) X(nvmlSystemGetDriverVersion)                 \
  X(nvmlDeviceGetCount_v2) X(nvmlDeviceGetHandleByIndex_v2) X(nvmlDeviceGetHandleByUUID)          \
  X(nvmlDeviceGetUUID) X(nvmlDeviceGetName) X(nvmlDeviceGetIndex) X(nvmlDeviceGetMinorNumber)     \
  X(nvmlDeviceGetMemoryInfo) X(nvmlDeviceGetPciInfo_v3) X(nvmlDeviceGetMigMode)                   \
  X(nvmlDeviceGetMaxMigDeviceCount) X(nvmlDeviceGetMigDeviceHandleByIndex)                        \
  X(nvmlDeviceGetComputeRunningProcesses_v3) X(nvmlDeviceGetUtilizationRates)                     \
  X(nvmlDeviceGetPowerUsage) X(nvmlDeviceGetTotalEnergyConsumption)                               \
  X(nvmlDeviceGetSupportedEventTypes) X(nvmlDeviceRegisterEvents) X(nvmlEventSetCreate)           \
  X(nvmlEventSetWait_v2) X(nvmlEventSetFree)

// What older drivers lack: null there, so callers ask before they call.
#define GPUSHM_NVML_OPTIONAL_FUNCTIONS(X)                                                         \
  X(nvmlDeviceGetGpuInstanceId) X(nvmlDeviceGetComputeInstanceId) X(nvmlDeviceGetRemappedRows)    \
  X(nvmlDeviceGetRetiredPagesPendingStatus) X(nvmlDeviceGetTotalEccErrors)                        \
  X(nvmlDeviceGetFieldValues) X(nvmlDeviceGetTemperature) X(nvmlDeviceGetEnforcedPowerLimit)      \
  X(nvmlDeviceGetClockInfo) X(nvmlDeviceGetPcieThroughput)                                        \
  X(nvmlDeviceGetCurrentClocksEventReasons)
// clang-format on

class NvmlApi {
 public:
#define GPUSHM_DECLARE(name) decltype(&::name) name = nullptr;
  GPUSHM_NVML_FUNCTIONS(GPUSHM_DECLARE)
  // nvmlDeviceGetTemperature: its successor is not in drivers of before 2025.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  GPUSHM_NVML_OPTIONAL_FUNCTIONS(GPUSHM_DECLARE)
#pragma GCC diagnostic pop
#undef GPUSHM_DECLARE

  // Loads libnvidia-ml.so.1 and calls nvmlInit once per process and folder; the table lives as long
  // as the process. `folder` as for CudaApi::Load. kUnsupported: missing or too old, and which.
  static Result<const NvmlApi*> Load(const std::string& folder);

  Result<void> Check(nvmlReturn_t result, std::string_view call) const;

  // To be held around calls in a process that restarts NVML: nvmlShutdown hangs for as long as
  // another thread is inside of NVML (H100, driver 580). Not recursive.
  [[nodiscard]] std::shared_lock<std::shared_timed_mutex> Use() const {
    return std::shared_lock(in_use_);
  }

  // nvmlShutdown and nvmlInit, which NVML needs after a GPU was reset or the driver loaded anew: 3
  // ms (H100, driver 580). Device handles and event sets of the whole process are invalid from then
  // on, so nobody keeps handles for longer than one Use(). The answer is nvmlInit's, and NVML is
  // uninitialised until one succeeds; NVML_ERROR_IN_USE: nothing was done, somebody is inside for
  // longer than kRestartWaitMs (a sick GPU?).
  static constexpr int kRestartWaitMs = 1000;
  nvmlReturn_t Restart() const;
  // How often that was. Waiting on an event set from before times out without a word (H100).
  uint64_t restarts() const { return restarts_; }

 private:
  NvmlApi() = default;

  mutable std::shared_timed_mutex in_use_;
  mutable std::atomic<uint64_t> restarts_ = 0;
  mutable bool initialised_ = true;  // Guarded by in_use_, held alone.
};

}  // namespace gpushm
