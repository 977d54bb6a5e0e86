#include "simulator/faults.h"

#include <sys/stat.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace gpushm::sim {
namespace {

struct Cache {
  std::mutex mutex;
  std::string key;
  std::shared_ptr<const Faults> faults = std::make_shared<const Faults>();
};

// Distinguishes versions of a file.
std::string VersionOf(const std::string& path) {
  struct stat status{};
  if (stat(path.c_str(), &status) != 0) return path + ":absent";
  std::ostringstream key;
  key << path << ':' << status.st_ino << ':' << status.st_size << ':' << status.st_mtim.tv_sec
      << '.' << status.st_mtim.tv_nsec;
  return key.str();
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  return text.str();
}

Xid ParseXid(const YAML::Node& node) {
  Xid xid;
  xid.gpu = node["gpu"].as<std::string>();
  xid.number = node["xid"].as<uint64_t>();
  if (node["instance"]) xid.gpu_instance = node["instance"].as<uint32_t>();
  if (node["compute"]) xid.compute_instance = node["compute"].as<uint32_t>();
  return xid;
}

GpuHealth ParseHealth(const YAML::Node& node) {
  GpuHealth health;
  health.gpu = node["gpu"].as<std::string>();
  for (const auto& entry : node) {
    const auto key = entry.first.as<std::string>();
    if (key == "ecc") {
      health.ecc_uncorrected = entry.second.as<uint64_t>();
    } else if (key == "remap_pending") {
      health.remap_pending = entry.second.as<bool>();
    } else if (key == "remap_failed") {
      health.remap_failed = entry.second.as<bool>();
    } else if (key == "recovery") {
      health.recovery_action = entry.second.as<uint32_t>();
    } else if (key != "gpu") {
      throw std::runtime_error("unknown key \"" + key + "\" under health");
    }
  }
  return health;
}

constexpr double kUint32Max = 0xFFFFFFFFU;
constexpr double kExactMax = 1ULL << 53;  // The largest range that a double holds exactly.
// Each sensor with its largest value.
constexpr std::pair<std::string_view, double> kSensors[] = {
    {"utilization", 1},
    {"memory-activity", 1},
    {"temperature", kUint32Max},
    {"memory-temperature", kUint32Max},
    {"power-watts", kUint32Max / 1000},
    {"power-limit-watts", kUint32Max / 1000},
    {"energy-joules", kExactMax / 1000},
    {"sm-clock-mhz", kUint32Max},
    {"memory-clock-mhz", kUint32Max},
    {"pcie-transmit", kUint32Max},
    {"pcie-receive", kUint32Max},
    {"nvlink-transmit", kExactMax},
    {"nvlink-receive", kExactMax},
    {"clock-reasons", kExactMax},
    {"ecc-corrected", kExactMax},
};

GpuSensors ParseSensors(const YAML::Node& node) {
  GpuSensors sensors{.gpu = node["gpu"].as<std::string>(), .values = {}};
  for (const auto& entry : node) {
    const auto key = entry.first.as<std::string>();
    if (key == "gpu") continue;
    const auto* const known =
        std::ranges::find(kSensors, key, &std::pair<std::string_view, double>::first);
    if (known == std::end(kSensors)) {
      throw std::runtime_error("unknown key \"" + key + "\" under sensors");
    }
    const auto value = entry.second.as<double>();
    if (!(value >= 0 && value <= known->second)) {
      throw std::runtime_error(key + " is out of range");
    }
    sensors.values[key] = value;
  }
  return sensors;
}

template <typename Named>
Named Find(const std::vector<Named>& all, const std::string& uuid, uint32_t index) {
  for (const Named& one : all) {
    if (one.gpu == uuid || one.gpu == std::to_string(index)) return one;
  }
  return {};
}

}  // namespace

std::optional<double> GpuSensors::Value(std::string_view name) const {
  const auto found = values.find(name);
  return found == values.end() ? std::nullopt : std::optional(found->second);
}

GpuHealth Faults::HealthOf(const std::string& uuid, uint32_t index) const {
  return Find(health, uuid, index);
}

GpuSensors Faults::SensorsOf(const std::string& uuid, uint32_t index) const {
  return Find(sensors, uuid, index);
}

bool Faults::IsLost(const std::string& uuid, uint32_t index) const {
  return std::find(lost.begin(), lost.end(), uuid) != lost.end() ||
         std::find(lost.begin(), lost.end(), std::to_string(index)) != lost.end();
}

bool ParseFaults(const std::string& text, Faults* faults, std::string* error) {
  try {
    *faults = {};
    const YAML::Node root = YAML::Load(text);
    if (!root || root.IsNull()) return true;
    if (!root.IsMap()) throw std::runtime_error("expected a map");
    for (const auto& entry : root) {
      const auto key = entry.first.as<std::string>();
      if (key == "results") {
        faults->results = entry.second.as<std::map<std::string, int>>();
      } else if (key == "hang") {
        faults->hang_ms = entry.second.as<std::map<std::string, uint64_t>>();
      } else if (key == "lost") {
        faults->lost = entry.second.as<std::vector<std::string>>();
      } else if (key == "xids") {
        for (const auto& node : entry.second) faults->xids.push_back(ParseXid(node));
      } else if (key == "health") {
        for (const auto& node : entry.second) faults->health.push_back(ParseHealth(node));
      } else if (key == "sensors") {
        for (const auto& node : entry.second) faults->sensors.push_back(ParseSensors(node));
      } else if (key == "driver_gone") {
        faults->driver_gone = entry.second.as<bool>();
      } else if (key == "unsupported") {
        faults->unsupported = entry.second.as<std::vector<std::string>>();
      } else {
        throw std::runtime_error("unknown key \"" + key + "\"");
      }
    }
    return true;
  } catch (const std::exception& problem) {
    *error = problem.what();
    *faults = {};
    return false;
  }
}

std::shared_ptr<const Faults> CurrentFaults(const std::string& folder) {
  static Cache* const cache = new Cache();  // Never destroyed: threads may outlive main.
  const char* given = std::getenv("GPUSHM_SIM_FAULT");
  const bool is_text = given != nullptr && *given != '\0' && *given != '/';
  const std::string path = given != nullptr && *given == '/' ? given : folder + "/faults.yaml";
  std::string key = is_text ? given : VersionOf(path);
  const std::lock_guard lock(cache->mutex);
  if (key == cache->key) return cache->faults;
  auto faults = std::make_shared<Faults>();
  std::string error;
  if (!ParseFaults(is_text ? given : ReadAll(path), faults.get(), &error)) {
    std::fprintf(stderr, "gpushm simulated driver: faults ignored: %s: %s\n",
                 is_text ? "GPUSHM_SIM_FAULT" : path.c_str(), error.c_str());
  }
  cache->key = std::move(key);
  cache->faults = std::move(faults);
  return cache->faults;
}

}  // namespace gpushm::sim
