// What NVML reports of one GPU at one moment, in base units. Values that it does not report are
// absent.
//
// Threads: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm::plugin::metrics {

// Reasons for reduced clocks, by the bit of nvmlClocksEventReason*.
struct ClockReason {
  std::string_view name;
  uint64_t bit;
};
inline constexpr ClockReason kClockReasons[] = {
    {"power_cap", 0x4},   {"hw_slowdown", 0x8}, {"sync_boost", 0x10},
    {"sw_thermal", 0x20}, {"hw_thermal", 0x40}, {"hw_power_brake", 0x80},
};

struct GpuSample {
  int64_t unix_ns = 0;
  std::string pci_bus_id;
  std::optional<uint64_t> total_bytes;
  std::optional<uint64_t> used_bytes;
  std::optional<uint64_t> other_bytes;  // Used, less what gpushm's buffers took at that moment.
  std::optional<double> utilization;
  std::optional<double> memory_activity;
  std::optional<double> temperature_celsius;
  std::optional<double> memory_temperature_celsius;
  std::optional<double> power_watts;
  std::optional<double> power_limit_watts;
  std::optional<double> energy_joules;
  std::optional<double> sm_clock_hertz;
  std::optional<double> memory_clock_hertz;
  std::optional<double> pcie_transmit_bytes_per_second;
  std::optional<double> pcie_receive_bytes_per_second;
  std::optional<double> nvlink_transmit_bytes;
  std::optional<double> nvlink_receive_bytes;
  std::optional<uint64_t> clock_reasons;
  std::optional<uint64_t> ecc_corrected;
  std::optional<uint64_t> ecc_uncorrected;
  // GPU memory of processes that is not a buffer, by allocation and container.
  std::map<std::pair<std::string, std::string>, uint64_t> private_bytes;
  // By allocation of a pod with MPS: processes of its containers that use the GPU without it.
  std::map<std::string, uint64_t> outside_mps;
};

}  // namespace gpushm::plugin::metrics
