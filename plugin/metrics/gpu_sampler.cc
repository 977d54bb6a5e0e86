#include "plugin/metrics/gpu_sampler.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "platform/base/clock.h"
#include "plugin/metrics/mps_processes.h"

namespace gpushm::plugin::metrics {
namespace {

constexpr int kTries = 3;  // Invariant 2.
constexpr double kMega = 1e6;
constexpr double kMilli = 1e-3;
// nvml.h: a KB/s of nvmlDeviceGetPcieThroughput is 1,000 bytes, a KiB of NVLink's fields 1,024.
constexpr double kKilo = 1e3;
constexpr double kKibi = 1024;
constexpr unsigned kAllNvlinks = ~0U;

// The value of one of NVML's getters times `factor`. Nothing if the getter fails, or the driver
// does not have it.
template <typename Value, typename Function, typename... Args>
std::optional<Value> Ask(Function function, nvmlDevice_t handle, double factor, Args... args) {
  if (function == nullptr) return std::nullopt;
  unsigned value = 0;
  if (function(handle, args..., &value) != NVML_SUCCESS) return std::nullopt;
  return static_cast<Value>(value) * factor;
}

std::optional<double> NumberOf(const nvmlFieldValue_t& field) {
  if (field.nvmlReturn != NVML_SUCCESS) return std::nullopt;
  switch (field.valueType) {
    case NVML_VALUE_TYPE_DOUBLE:
      return field.value.dVal;
    case NVML_VALUE_TYPE_UNSIGNED_INT:
      return field.value.uiVal;
    case NVML_VALUE_TYPE_UNSIGNED_LONG:
      return static_cast<double>(field.value.ulVal);
    case NVML_VALUE_TYPE_UNSIGNED_LONG_LONG:
      return static_cast<double>(field.value.ullVal);
    case NVML_VALUE_TYPE_SIGNED_LONG_LONG:
      return static_cast<double>(field.value.sllVal);
    default:
      return std::nullopt;
  }
}

void ReadFields(const NvmlApi& nvml, nvmlDevice_t handle, GpuSample* sample) {
  if (nvml.nvmlDeviceGetFieldValues == nullptr) return;
  std::array<nvmlFieldValue_t, 3> fields{};
  fields[0].fieldId = NVML_FI_DEV_MEMORY_TEMP;
  fields[1].fieldId = NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX;
  fields[2].fieldId = NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX;
  fields[1].scopeId = fields[2].scopeId = kAllNvlinks;
  if (nvml.nvmlDeviceGetFieldValues(handle, static_cast<int>(fields.size()), fields.data()) !=
      NVML_SUCCESS) {
    return;
  }
  sample->memory_temperature_celsius = NumberOf(fields[0]);
  const auto bytes = [](const std::optional<double>& kib) {
    return kib ? std::optional(*kib * kKibi) : std::nullopt;
  };
  sample->nvlink_transmit_bytes = bytes(NumberOf(fields[1]));
  sample->nvlink_receive_bytes = bytes(NumberOf(fields[2]));
}

void ReadSensors(const NvmlApi& nvml, nvmlDevice_t handle, GpuSample* sample) {
  nvmlUtilization_t rates{};
  if (nvml.nvmlDeviceGetUtilizationRates(handle, &rates) == NVML_SUCCESS) {
    sample->utilization = rates.gpu / 100.0;
    sample->memory_activity = rates.memory / 100.0;
  }
  sample->temperature_celsius =
      Ask<double>(nvml.nvmlDeviceGetTemperature, handle, 1, NVML_TEMPERATURE_GPU);
  sample->power_watts = Ask<double>(nvml.nvmlDeviceGetPowerUsage, handle, kMilli);
  sample->power_limit_watts = Ask<double>(nvml.nvmlDeviceGetEnforcedPowerLimit, handle, kMilli);
  sample->sm_clock_hertz = Ask<double>(nvml.nvmlDeviceGetClockInfo, handle, kMega, NVML_CLOCK_SM);
  sample->memory_clock_hertz =
      Ask<double>(nvml.nvmlDeviceGetClockInfo, handle, kMega, NVML_CLOCK_MEM);
  sample->pcie_transmit_bytes_per_second =
      Ask<double>(nvml.nvmlDeviceGetPcieThroughput, handle, kKilo, NVML_PCIE_UTIL_TX_BYTES);
  sample->pcie_receive_bytes_per_second =
      Ask<double>(nvml.nvmlDeviceGetPcieThroughput, handle, kKilo, NVML_PCIE_UTIL_RX_BYTES);
  unsigned long long number = 0;
  if (nvml.nvmlDeviceGetTotalEnergyConsumption(handle, &number) == NVML_SUCCESS) {
    sample->energy_joules = static_cast<double>(number) * kMilli;
  }
  if (nvml.nvmlDeviceGetCurrentClocksEventReasons != nullptr &&
      nvml.nvmlDeviceGetCurrentClocksEventReasons(handle, &number) == NVML_SUCCESS) {
    sample->clock_reasons = number;
  }
  const auto ecc = [&](nvmlMemoryErrorType_t kind) -> std::optional<uint64_t> {
    if (nvml.nvmlDeviceGetTotalEccErrors == nullptr ||
        nvml.nvmlDeviceGetTotalEccErrors(handle, kind, NVML_VOLATILE_ECC, &number) !=
            NVML_SUCCESS) {
      return std::nullopt;
    }
    return number;
  };
  sample->ecc_corrected = ecc(NVML_MEMORY_ERROR_TYPE_CORRECTED);
  sample->ecc_uncorrected = ecc(NVML_MEMORY_ERROR_TYPE_UNCORRECTED);
  ReadFields(nvml, handle, sample);
}

uint64_t BytesOf(const std::map<std::string, uint64_t>& buffers, const std::string& uuid) {
  const auto found = buffers.find(uuid);
  return found == buffers.end() ? 0 : found->second;
}

// What NVML's list of processes has; nothing if it cannot be read.
template <typename Function>
std::optional<std::vector<nvmlProcessInfo_t>> ListProcesses(Function function,
                                                            nvmlDevice_t handle) {
  std::vector<nvmlProcessInfo_t> processes(256);
  for (int i = 0; i < kTries; ++i) {
    auto count = static_cast<unsigned>(processes.size());
    const nvmlReturn_t result = function(handle, &count, processes.data());
    if (result == NVML_ERROR_INSUFFICIENT_SIZE) {
      processes.resize(size_t{count} * 2);
      continue;
    }
    if (result != NVML_SUCCESS) return std::nullopt;
    processes.resize(count);
    return processes;
  }
  return std::nullopt;
}

void ReadPrivate(const std::vector<nvmlProcessInfo_t>& processes,
                 const std::vector<keeper::ClientProcess>& clients, GpuSample* sample) {
  struct Sum {
    uint64_t used_bytes = 0;
    uint64_t offered_bytes = 0;
  };
  std::map<std::pair<std::string, std::string>, Sum> sums;  // Keyed by allocation and container.
  std::set<uint32_t> counted;                               // A process can be several clients.
  for (const keeper::ClientProcess& client : clients) {
    const auto found = std::ranges::find(processes, client.pid, &nvmlProcessInfo_t::pid);
    // All bits set means that the driver does not know (vGPU, WDDM).
    if (found == processes.end() || found->usedGpuMemory == ~uint64_t{0}) continue;
    if (!counted.insert(client.pid).second) continue;
    Sum& sum = sums[{client.allocation, client.container}];
    sum.used_bytes += found->usedGpuMemory;
    sum.offered_bytes = client.offered_bytes;
  }
  for (const auto& [container, sum] : sums) {
    // NVML counts what a process allocated itself, not what it imported
    // (docs/design/conformance.md).
    sample->private_bytes[container] = sum.used_bytes - std::min(sum.used_bytes, sum.offered_bytes);
  }
}

}  // namespace

GpuSampler::GpuSampler(const NvmlApi& nvml, std::vector<inventory::Device> devices,
                       int64_t period_ms, Sources sources)
    : nvml_(nvml),
      devices_(std::move(devices)),
      period_ms_(period_ms),
      sources_(std::move(sources)) {
  std::array<char, NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE> version{};
  if (nvml.nvmlSystemGetDriverVersion(version.data(), version.size()) == NVML_SUCCESS) {
    driver_version_ = version.data();
  }
  thread_ = std::thread([this] { Run(); });
}

GpuSampler::~GpuSampler() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void GpuSampler::Run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    SampleAll();
    lock.lock();
    if (!stopping_) changed_.wait_for(lock, std::chrono::milliseconds(period_ms_));
  }
}

void GpuSampler::SampleAll() {
  std::map<std::string, GpuSample> samples;
  for (const inventory::Device& device : devices_) {
    const auto use = nvml_.Use();
    nvmlDevice_t handle{};
    if (nvml_.nvmlDeviceGetHandleByUUID(device.uuid.c_str(), &handle) != NVML_SUCCESS) continue;
    if (auto sample = Sample(device, handle)) samples[device.uuid] = *std::move(sample);
  }
  const std::lock_guard lock(mutex_);
  samples_ = std::move(samples);
}

std::optional<GpuSample> GpuSampler::Sample(const inventory::Device& device,
                                            nvmlDevice_t handle) const {
  GpuSample sample;
  sample.unix_ns = UnixNs();
  // NVML answers handle and PCI address from its cache; this call reaches the GPU itself.
  if (!ReadMemory(device, handle, &sample)) return std::nullopt;
  nvmlPciInfo_t pci{};
  if (nvml_.nvmlDeviceGetPciInfo_v3(handle, &pci) == NVML_SUCCESS) sample.pci_bus_id = pci.busId;
  ReadSensors(nvml_, handle, &sample);
  if (sources_.processes) ReadProcesses(handle, &sample);
  return sample;
}

bool GpuSampler::ReadMemory(const inventory::Device& device, nvmlDevice_t handle,
                            GpuSample* sample) const {
  for (int i = 0; i < kTries; ++i) {
    const uint64_t before = BytesOf(sources_.buffers(), device.uuid);
    nvmlMemory_t memory{};
    const nvmlReturn_t result = nvml_.nvmlDeviceGetMemoryInfo(handle, &memory);
    // A GPU without memory of its own still answers.
    if (result != NVML_SUCCESS) return result == NVML_ERROR_NOT_SUPPORTED;
    sample->total_bytes = memory.total;
    sample->used_bytes = memory.used;
    if (BytesOf(sources_.buffers(), device.uuid) != before) continue;
    // A broker reports an allocation after it is made, and a release before the memory is free.
    if (memory.used >= before) sample->other_bytes = memory.used - before;
    break;
  }
  return true;
}

void GpuSampler::ReadProcesses(nvmlDevice_t handle, GpuSample* sample) const {
  const auto processes = ListProcesses(nvml_.nvmlDeviceGetComputeRunningProcesses_v3, handle);
  if (!processes) return;
  const keeper::NodeProcesses node = sources_.processes();
  ReadPrivate(*processes, node.clients, sample);
  if (node.mps_pods.empty()) return;
  // Drivers from before 2021 lack it.
  if (nvml_.nvmlDeviceGetMPSComputeRunningProcesses_v3 == nullptr) return;
  const auto served = ListProcesses(nvml_.nvmlDeviceGetMPSComputeRunningProcesses_v3, handle);
  if (served) sample->outside_mps = OutsideMps(*processes, *served, node.mps_pods, sources_.proc);
}

std::map<std::string, GpuSample> GpuSampler::Look() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, GpuSample> fresh;
  const int64_t oldest_ns = UnixNs() - kStaleRounds * period_ms_ * 1'000'000 - 1'000'000'000;
  for (const auto& [uuid, sample] : samples_) {
    if (sample.unix_ns >= oldest_ns) fresh.emplace(uuid, sample);
  }
  return fresh;
}

}  // namespace gpushm::plugin::metrics
