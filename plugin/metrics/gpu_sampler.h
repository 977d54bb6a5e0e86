// Reads the GPUs' state from NVML periodically, so that nobody else has to wait for NVML. A call on
// an unhealthy GPU can hang in the driver, and some calls take 20 ms even on a healthy one (PCIe
// throughput).
//
// Invariants
//   (1) Look() never waits for NVML. A GPU has no sample if it was not read for kStaleRounds
//       periods plus a second, or if it does not answer.
//   (2) Used bytes and buffer bytes are of the same moment: the ledger is read before and after,
//       and after a change in between NVML is read again. If it keeps changing, there is no
//       other_bytes.
//
// Threads: one of its own; Look from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "platform/driver/nvml_api.h"
#include "plugin/inventory/inventory.h"
#include "plugin/keeper/link_view.h"
#include "plugin/metrics/gpu_sample.h"

namespace gpushm::plugin::metrics {

class GpuSampler {
 public:
  struct Sources {
    // Physical bytes of the buffers on each GPU, by UUID.
    std::function<std::map<std::string, uint64_t>()> buffers;
    // Processes of pods whose PIDs are visible to the plugin. Empty function: none are.
    std::function<keeper::NodeProcesses()> processes;
    std::string proc = "/proc";
  };
  static constexpr int kStaleRounds = 3;

  GpuSampler(const NvmlApi& nvml, std::vector<inventory::Device> devices, int64_t period_ms,
             Sources sources);
  GpuSampler(const GpuSampler&) = delete;
  GpuSampler& operator=(const GpuSampler&) = delete;
  ~GpuSampler();

  const std::string& driver_version() const { return driver_version_; }

  // Keyed by UUID.
  std::map<std::string, GpuSample> Look() const;

 private:
  void Run();
  void SampleAll();
  // Nothing: the GPU does not answer.
  std::optional<GpuSample> Sample(const inventory::Device& device, nvmlDevice_t handle) const;
  bool ReadMemory(const inventory::Device& device, nvmlDevice_t handle, GpuSample* sample) const;
  void ReadProcesses(nvmlDevice_t handle, GpuSample* sample) const;

  const NvmlApi& nvml_;
  const std::vector<inventory::Device> devices_;
  const int64_t period_ms_;
  const Sources sources_;
  std::string driver_version_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;  // Guarded by mutex_, like all below.
  std::map<std::string, GpuSample> samples_;
  std::thread thread_;
};

}  // namespace gpushm::plugin::metrics
