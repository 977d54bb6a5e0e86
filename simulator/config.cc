#include "simulator/config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>

namespace gpushm::sim {
namespace {

constexpr uint64_t kDefaultMemoryBytes = uint64_t{80} << 30;

// Microseconds, medians of one H200 with driver 580 and CUDA 13.0.
const std::map<std::string, uint64_t>& RealisticLatency() {
  static const auto* const table = new std::map<std::string, uint64_t>{
      {"init", 10'000}, {"context", 120'000}, {"create", 30},
      {"release", 20},  {"export", 16},       {"export_no_context", 800},
      {"import", 16},   {"map", 30},          {"unmap", 16},
      {"ipc_open", 24}, {"ipc_close", 18},    {"ipc_export", 2},
      {"memop", 3},     {"copy", 5},
  };
  return *table;
}

[[noreturn]] void Reject(const YAML::Node& node, const std::string& what) {
  throw std::runtime_error("line " + std::to_string(node.Mark().line + 1) + ": " + what);
}

void CheckKeys(const YAML::Node& node, std::initializer_list<const char*> known) {
  if (!node.IsMap()) Reject(node, "expected a map");
  std::set<std::string> seen;
  for (const auto& entry : node) {
    const auto key = entry.first.as<std::string>();
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      Reject(entry.first, "unknown key \"" + key + "\"");
    }
    if (!seen.insert(key).second) Reject(entry.first, "duplicate key \"" + key + "\" in this map");
  }
}

// "80Gi", "512Mi" or plain bytes.
uint64_t ParseBytes(const YAML::Node& node) {
  if (!node || !node.IsScalar()) Reject(node, "expected a size such as 80Gi");
  const std::string& text = node.Scalar();
  const size_t digits = text.find_first_not_of("0123456789");
  const std::string suffix = digits == std::string::npos ? "" : text.substr(digits);
  int shift = -1;
  if (suffix.empty()) shift = 0;
  if (suffix == "Ki") shift = 10;
  if (suffix == "Mi") shift = 20;
  if (suffix == "Gi") shift = 30;
  if (suffix == "Ti") shift = 40;
  errno = 0;
  const unsigned long long number = std::strtoull(text.c_str(), nullptr, 10);
  if (digits == 0 || shift < 0 || errno != 0 ||
      number > (uint64_t{1} << 46 >> static_cast<unsigned>(shift))) {
    Reject(node, "\"" + text + "\" is not a size such as 80Gi");
  }
  return static_cast<uint64_t>(number) << static_cast<unsigned>(shift);
}

std::optional<UuidBytes> ParseUuid(const std::string& text, const std::string& prefix) {
  if (text.compare(0, prefix.size(), prefix) != 0 || text.size() != prefix.size() + 36) return {};
  UuidBytes bytes{};
  size_t nibbles = 0;
  for (size_t i = 0; i < 36; ++i) {
    const char c = text[prefix.size() + i];
    if (i == 8 || i == 13 || i == 18 || i == 23) {
      if (c != '-') return {};
      continue;
    }
    int digit = -1;
    if (c >= '0' && c <= '9') digit = c - '0';
    if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
    if (digit < 0) return {};
    bytes[nibbles / 2] = static_cast<uint8_t>(bytes[nibbles / 2] * 16 + digit);
    ++nibbles;
  }
  return bytes;
}

std::string DefaultUuid(const char* prefix, size_t gpu, size_t instance) {
  char text[64];
  std::snprintf(text, sizeof text, "%s51700000-0000-4000-8000-%04zx%08zx", prefix, instance, gpu);
  return text;
}

void SetUuid(Card* card, const YAML::Node& node, const char* prefix, size_t gpu, size_t instance) {
  card->uuid_text = node ? node.as<std::string>() : DefaultUuid(prefix, gpu, instance);
  const auto bytes = ParseUuid(card->uuid_text, prefix);
  if (!bytes)
    Reject(node, "\"" + card->uuid_text + "\" is not a UUID of the form " + prefix + "...");
  card->uuid = *bytes;
}

void ParseMig(const YAML::Node& list, const Card& gpu, size_t index, Machine* machine) {
  if (!list.IsSequence()) Reject(list, "mig must be a list");
  uint64_t sum = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const YAML::Node& node = list[i];
    CheckKeys(node, {"profile", "memory", "uuid"});
    Card instance;
    if (!node["profile"] || !node["memory"])
      Reject(node, "a MIG instance needs profile and memory");
    instance.name = gpu.name + " MIG " + node["profile"].as<std::string>();
    instance.memory_bytes = ParseBytes(node["memory"]);
    instance.gpu_index = gpu.gpu_index;
    instance.mig = true;
    instance.gpu_instance = static_cast<uint32_t>(i + 1);
    instance.all_peers = false;
    SetUuid(&instance, node["uuid"], "MIG-", index, i + 1);
    sum += instance.memory_bytes;
    machine->cards.push_back(instance);
  }
  if (sum > gpu.memory_bytes) Reject(list, "the MIG instances are larger than their GPU");
}

void ParseGpu(const YAML::Node& node, size_t index, Machine* machine) {
  CheckKeys(node, {"name", "memory", "uuid", "reserve", "mig", "peers", "link"});
  Card gpu;
  gpu.name = node["name"] ? node["name"].as<std::string>() : "Simulated GPU";
  gpu.memory_bytes = node["memory"] ? ParseBytes(node["memory"]) : kDefaultMemoryBytes;
  gpu.reserve_bytes = node["reserve"] ? ParseBytes(node["reserve"]) : 0;
  gpu.gpu_index = static_cast<uint32_t>(index);
  if (gpu.memory_bytes == 0 || gpu.reserve_bytes > gpu.memory_bytes) {
    Reject(node, "memory must be more than 0 and at least reserve");
  }
  SetUuid(&gpu, node["uuid"], "GPU-", index, 0);
  if (const YAML::Node peers = node["peers"]) {
    gpu.all_peers = false;
    gpu.peers = peers.as<std::vector<std::string>>();
  }
  if (const YAML::Node link = node["link"]) {
    gpu.nvlink = link.as<std::string>() == "nvlink";
    if (!gpu.nvlink && link.as<std::string>() != "pcie")
      Reject(link, "link must be nvlink or pcie");
  }
  gpu.mig_mode = static_cast<bool>(node["mig"]);
  machine->cards.push_back(gpu);
  if (gpu.mig_mode) ParseMig(node["mig"], gpu, index, machine);
}

void ParseLatency(const YAML::Node& node, Machine* machine) {
  if (node.IsScalar()) {
    const auto preset = node.as<std::string>();
    if (preset == "realistic") {
      machine->latency_us = RealisticLatency();
    } else if (preset != "zero") {
      Reject(node, "latency must be realistic, zero or a map");
    }
    return;
  }
  if (!node.IsMap()) Reject(node, "latency must be realistic, zero or a map");
  for (const auto& entry : node) {
    const auto key = entry.first.as<std::string>();
    if (!RealisticLatency().contains(key)) Reject(entry.first, "unknown latency \"" + key + "\"");
    machine->latency_us[key] = entry.second.as<uint64_t>();
  }
}

void CheckUnique(const Machine& machine) {
  std::set<std::string> uuids;
  for (const Card& card : machine.cards) {
    if (!uuids.insert(card.uuid_text).second) {
      throw std::runtime_error("two cards have the UUID " + card.uuid_text);
    }
  }
}

std::vector<std::string> SplitList(const char* text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    const size_t first = part.find_first_not_of(" \t");
    const size_t last = part.find_last_not_of(" \t");
    parts.push_back(first == std::string::npos ? "" : part.substr(first, last - first + 1));
  }
  return parts;
}

// The card that one entry of CUDA_VISIBLE_DEVICES names: by an ordinal, or by the start of a UUID.
std::optional<size_t> Choose(const Machine& machine, const std::vector<size_t>& gpus,
                             const std::vector<size_t>& present, const std::string& entry) {
  if (entry.empty()) return {};
  if (entry.find_first_not_of("0123456789") == std::string::npos) {
    const unsigned long ordinal = std::strtoul(entry.c_str(), nullptr, 10);
    if (ordinal >= gpus.size()) return {};
    return gpus[ordinal];
  }
  if (entry.size() <= 4) return {};
  for (const size_t i : present) {
    if (!machine.cards[i].mig_mode && machine.cards[i].uuid_text.starts_with(entry)) return i;
  }
  return {};
}

}  // namespace

bool Card::CanReach(const Card& other) const {
  if (uuid == other.uuid) return true;
  if (mig || other.mig) return false;
  return all_peers || std::find(peers.begin(), peers.end(), other.uuid_text) != peers.end();
}

const Card* Machine::Find(const UuidBytes& uuid) const {
  for (const Card& card : cards) {
    if (card.uuid == uuid) return &card;
  }
  return nullptr;
}

std::string StateFolder() {
  const char* folder = std::getenv("GPUSHM_SIM_DIR");
  return folder == nullptr || *folder == '\0' ? "/var/tmp/gpushm-sim" : folder;
}

bool ParseMachine(const std::string& text, Machine* machine, std::string* error) {
  try {
    *machine = {};
    const YAML::Node root = YAML::Load(text);
    if (root && !root.IsNull()) CheckKeys(root, {"gpus", "latency"});
    const YAML::Node gpus = root && !root.IsNull() ? root["gpus"] : YAML::Node();
    if (gpus && !gpus.IsNull()) {
      if (!gpus.IsSequence()) Reject(gpus, "gpus must be a list");
      for (size_t i = 0; i < gpus.size(); ++i) ParseGpu(gpus[i], i, machine);
    } else {
      ParseGpu(YAML::Load("{}"), 0, machine);
    }
    if (root && !root.IsNull() && root["latency"]) ParseLatency(root["latency"], machine);
    CheckUnique(*machine);
    const char* preset = std::getenv("GPUSHM_SIM_LATENCY");
    if (preset != nullptr && *preset != '\0') {
      machine->latency_us.clear();
      ParseLatency(YAML::Node(std::string(preset)), machine);
    }
    return true;
  } catch (const std::exception& problem) {
    *error = problem.what();
    return false;
  }
}

bool LoadMachine(const std::string& folder, Machine* machine, std::string* error) {
  std::ifstream file(folder + "/cards.yaml");
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (ParseMachine(text.str(), machine, error)) return true;
  *error = folder + "/cards.yaml: " + *error;
  return false;
}

std::vector<size_t> VisibleToNvml(const Machine& machine) {
  std::vector<size_t> present;
  const char* nodes = std::getenv("GPUSHM_SIM_DEVICES");
  for (size_t i = 0; i < machine.cards.size(); ++i) {
    bool shown = nodes == nullptr;
    if (!shown) {
      for (const std::string& name : SplitList(nodes)) {
        // A MIG instance brings its GPU's node, and a GPU's node brings all of its instances.
        for (const Card& card : machine.cards) {
          const bool named =
              card.uuid_text == name || (!card.mig && name == std::to_string(card.gpu_index));
          const bool related =
              &card == &machine.cards[i] || (card.gpu_index == machine.cards[i].gpu_index &&
                                             (!machine.cards[i].mig || !card.mig));
          shown = shown || (named && related);
        }
      }
    }
    if (shown) present.push_back(i);
  }
  return present;
}

std::vector<size_t> VisibleToCuda(const Machine& machine) {
  const std::vector<size_t> present = VisibleToNvml(machine);
  std::vector<size_t> gpus;
  for (const size_t i : present) {
    if (!machine.cards[i].mig && !machine.cards[i].mig_mode) gpus.push_back(i);
  }
  // Without a whole GPU, CUDA shows the first MIG instance, and never more than one.
  if (gpus.empty()) {
    for (const size_t i : present) {
      if (machine.cards[i].mig && gpus.empty()) gpus.push_back(i);
    }
  }
  const char* chosen = std::getenv("CUDA_VISIBLE_DEVICES");
  if (chosen == nullptr) return gpus;
  std::vector<size_t> visible;
  for (const std::string& entry : SplitList(chosen)) {
    const auto card = Choose(machine, gpus, present, entry);
    if (!card) break;  // As in CUDA, entries after the first wrong one have no effect.
    visible.push_back(*card);
    if (machine.cards[*card].mig) break;
  }
  return visible;
}

}  // namespace gpushm::sim
