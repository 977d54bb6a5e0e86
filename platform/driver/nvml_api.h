// NVML, loaded at run time like the driver: which GPUs the machine has and how full they are.
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

// Functions that older drivers lack. They are null there, so callers check before they call.
#define GPUSHM_NVML_OPTIONAL_FUNCTIONS(X)                                                         \
  X(nvmlDeviceGetGpuInstanceId) X(nvmlDeviceGetComputeInstanceId) X(nvmlDeviceGetRemappedRows)    \
  X(nvmlDeviceGetRetiredPagesPendingStatus) X(nvmlDeviceGetTotalEccErrors)                        \
  X(nvmlDeviceGetFieldValues) X(nvmlDeviceGetTemperature) X(nvmlDeviceGetEnforcedPowerLimit)      \
  X(nvmlDeviceGetClockInfo) X(nvmlDeviceGetPcieThroughput)                                        \
  X(nvmlDeviceGetCurrentClocksEventReasons) X(nvmlDeviceGetMPSComputeRunningProcesses_v3)   \
  X(nvmlDeviceGetP2PStatus)
// clang-format on

class NvmlApi {
 public:
#define GPUSHM_DECLARE(name) decltype(&::name) name = nullptr;
  GPUSHM_NVML_FUNCTIONS(GPUSHM_DECLARE)
  // nvmlDeviceGetTemperature is deprecated, but drivers from before 2025 lack its successor.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  GPUSHM_NVML_OPTIONAL_FUNCTIONS(GPUSHM_DECLARE)
#pragma GCC diagnostic pop
#undef GPUSHM_DECLARE

  // Loads libnvidia-ml.so.1 and calls nvmlInit once per process and folder; the table lives as long
  // as the process. `folder` as for CudaApi::Load. kUnsupported: NVML or one of its functions is
  // missing or too old; the text says which.
  static Result<const NvmlApi*> Load(const std::string& folder);

  Result<void> Check(nvmlReturn_t result, std::string_view call) const;

  // Hold this around NVML calls in a process that restarts NVML: nvmlShutdown hangs while another
  // thread is inside NVML (H100, driver 580). Not recursive.
  [[nodiscard]] std::shared_lock<std::shared_timed_mutex> Use() const {
    return std::shared_lock(in_use_);
  }

  // Calls nvmlShutdown and nvmlInit, which NVML needs after a GPU was reset or the driver was
  // reloaded: 3 ms (H100, driver 580). This invalidates device handles and event sets of the whole
  // process, so nobody keeps handles for longer than one Use(). The result is nvmlInit's, and NVML
  // is uninitialised until one succeeds. NVML_ERROR_IN_USE: nothing was done, because a thread has
  // been inside NVML for longer than kRestartWaitMs (perhaps an unhealthy GPU).
  static constexpr int kRestartWaitMs = 1000;
  nvmlReturn_t Restart() const;
  // Number of restarts so far. Waiting on an event set from before a restart times out without an
  // error (H100).
  uint64_t restarts() const { return restarts_; }

 private:
  NvmlApi() = default;

  mutable std::shared_timed_mutex in_use_;
  mutable std::atomic<uint64_t> restarts_ = 0;
  mutable bool initialised_ = true;  // Guarded by in_use_, held exclusively.
};

}  // namespace gpushm
