// NVML's view of a GPU's sensors, from faults.yaml. A MIG instance has no sensors of its own.
#include "simulator/nvml/nvml.h"
// It must be the first include, as exported_api.h explains.

#include <cmath>
#include <optional>

using gpushm::sim::CallNvmlDevice;
using gpushm::sim::Card;
using gpushm::sim::CurrentFaults;
using gpushm::sim::Nvml;

namespace {

constexpr double kPercent = 100;
constexpr double kMilli = 1000;  // Milliwatts, millijoules.
constexpr unsigned kAllNvlinks = ~0U;
// NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, which headers of CUDA 12.6 and older lack.
constexpr unsigned kRecoveryAction = 230;

std::optional<double> Sensor(const Nvml& nvml, const Card& card, const char* name) {
  if (card.mig) return std::nullopt;
  const auto faults = CurrentFaults(nvml.state->folder());
  return faults->SensorsOf(card.uuid_text, card.gpu_index).Value(name);
}

// Returns one number, in units of 1/factor of those in faults.yaml.
template <typename Number>
nvmlReturn_t Tell(const char* function, nvmlDevice_t device, const char* name, double factor,
                  Number* number) {
  return CallNvmlDevice(function, device, [&](Nvml& nvml, const Card& card) {
    if (number == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    const auto value = name == nullptr ? std::nullopt : Sensor(nvml, card, name);
    if (!value) return NVML_ERROR_NOT_SUPPORTED;
    *number = static_cast<Number>(std::llround(*value * factor));
    return NVML_SUCCESS;
  });
}

// The requested sensor; null: neither.
template <typename Kind>
const char* OneOf(Kind asked, Kind one, const char* of_one, Kind other, const char* of_other) {
  return asked == one ? of_one : asked == other ? of_other : nullptr;
}

void TellField(const Nvml& nvml, const Card& card, nvmlFieldValue_t* field) {
  field->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
  if (field->fieldId == kRecoveryAction) {
    const auto faults = CurrentFaults(nvml.state->folder());
    field->nvmlReturn = NVML_SUCCESS;
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    field->value.uiVal = faults->HealthOf(card.uuid_text, card.gpu_index).recovery_action;
    return;
  }
  const bool transmit = field->fieldId == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX;
  const bool receive = field->fieldId == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX;
  if (transmit || receive) {
    const auto kib = Sensor(nvml, card, transmit ? "nvlink-transmit" : "nvlink-receive");
    if (!kib || field->scopeId != kAllNvlinks) return;
    field->nvmlReturn = NVML_SUCCESS;
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    field->value.ullVal = static_cast<unsigned long long>(*kib);
    return;
  }
  if (field->fieldId != NVML_FI_DEV_MEMORY_TEMP) return;
  const auto celsius = Sensor(nvml, card, "memory-temperature");
  if (!celsius) return;
  field->nvmlReturn = NVML_SUCCESS;
  field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
  field->value.uiVal = static_cast<unsigned>(*celsius);
}

}  // namespace

nvmlReturn_t DECLDIR nvmlDeviceGetUtilizationRates(nvmlDevice_t device,
                                                   nvmlUtilization_t* utilization) {
  return CallNvmlDevice("nvmlDeviceGetUtilizationRates", device, [&](Nvml& nvml, const Card& card) {
    if (utilization == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    if (card.mig) return NVML_ERROR_NOT_SUPPORTED;
    const auto percent = [&](const char* name) {
      return static_cast<unsigned>(std::lround(Sensor(nvml, card, name).value_or(0) * kPercent));
    };
    utilization->gpu = percent("utilization");
    utilization->memory = percent("memory-activity");
    return NVML_SUCCESS;
  });
}

nvmlReturn_t DECLDIR nvmlDeviceGetTemperature(nvmlDevice_t device,
                                              nvmlTemperatureSensors_t sensorType,
                                              unsigned int* temp) {
  return Tell("nvmlDeviceGetTemperature", device,
              sensorType == NVML_TEMPERATURE_GPU ? "temperature" : nullptr, 1, temp);
}

nvmlReturn_t DECLDIR nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int* power) {
  return Tell("nvmlDeviceGetPowerUsage", device, "power-watts", kMilli, power);
}

nvmlReturn_t DECLDIR nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int* limit) {
  return Tell("nvmlDeviceGetEnforcedPowerLimit", device, "power-limit-watts", kMilli, limit);
}

nvmlReturn_t DECLDIR nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device,
                                                         unsigned long long* energy) {
  return Tell("nvmlDeviceGetTotalEnergyConsumption", device, "energy-joules", kMilli, energy);
}

nvmlReturn_t DECLDIR nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type,
                                            unsigned int* clock) {
  const char* const name =
      OneOf(type, NVML_CLOCK_SM, "sm-clock-mhz", NVML_CLOCK_MEM, "memory-clock-mhz");
  return Tell("nvmlDeviceGetClockInfo", device, name, 1, clock);
}

nvmlReturn_t DECLDIR nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter,
                                                 unsigned int* value) {
  const char* const name = OneOf(counter, NVML_PCIE_UTIL_TX_BYTES, "pcie-transmit",
                                 NVML_PCIE_UTIL_RX_BYTES, "pcie-receive");
  return Tell("nvmlDeviceGetPcieThroughput", device, name, 1, value);
}

nvmlReturn_t DECLDIR nvmlDeviceGetCurrentClocksEventReasons(
    nvmlDevice_t device, unsigned long long* clocksEventReasons) {
  return Tell("nvmlDeviceGetCurrentClocksEventReasons", device, "clock-reasons", 1,
              clocksEventReasons);
}

nvmlReturn_t DECLDIR nvmlDeviceGetTotalEccErrors(nvmlDevice_t device,
                                                 nvmlMemoryErrorType_t errorType,
                                                 nvmlEccCounterType_t,
                                                 unsigned long long* eccCounts) {
  if (errorType == NVML_MEMORY_ERROR_TYPE_CORRECTED) {
    return Tell("nvmlDeviceGetTotalEccErrors", device, "ecc-corrected", 1, eccCounts);
  }
  return CallNvmlDevice("nvmlDeviceGetTotalEccErrors", device, [&](Nvml& nvml, const Card& card) {
    if (eccCounts == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    if (card.mig) return NVML_ERROR_NOT_SUPPORTED;
    const auto faults = CurrentFaults(nvml.state->folder());
    *eccCounts = faults->HealthOf(card.uuid_text, card.gpu_index).ecc_uncorrected;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t DECLDIR nvmlDeviceGetFieldValues(nvmlDevice_t device, int valuesCount,
                                              nvmlFieldValue_t* values) {
  return CallNvmlDevice("nvmlDeviceGetFieldValues", device, [&](Nvml& nvml, const Card& card) {
    if (values == nullptr || valuesCount < 0) return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < valuesCount; ++i) TellField(nvml, card, &values[i]);
    return NVML_SUCCESS;
  });
}
