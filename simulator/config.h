// What the simulated machine consists of: cards.yaml of the state folder, or one 80 GiB card.
// README.md documents the format.
//
// Threads: immutable after loading.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace gpushm::sim {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGranularityBytes = 2 * kMiB;  // As on Hopper.
// What a primary context takes of the card: measured on H200, driver 580.
inline constexpr uint64_t kContextBytes = 523 * kMiB;

using UuidBytes = std::array<uint8_t, 16>;

// One thing that CUDA can see as a device: a GPU, or a MIG instance of one.
struct Card {
  std::string name;
  std::string uuid_text;  // "GPU-..." or "MIG-...".
  UuidBytes uuid{};
  uint64_t memory_bytes = 0;
  uint64_t reserve_bytes = 0;  // Taken by the driver itself.
  uint32_t gpu_index = 0;      // Of the physical GPU, in the order of cards.yaml.
  bool mig = false;            // This is a MIG instance.
  uint32_t gpu_instance = 0;   // Of a MIG instance: from 1. Its compute instance is 0.
  bool mig_mode = false;       // This is a GPU cut into MIG instances: CUDA does not see it.
  std::vector<std::string> peers;
  bool all_peers = true;
  bool nvlink = true;  // What it reaches its peers over, unless the peer has PCIe alone.

  bool CanReach(const Card& other) const;
};

struct Machine {
  std::vector<Card> cards;                     // Each GPU, followed by its MIG instances.
  std::map<std::string, uint64_t> latency_us;  // By name; absent: none.

  const Card* Find(const UuidBytes& uuid) const;
};

// The state folder: GPUSHM_SIM_DIR, or /var/tmp/gpushm-sim.
std::string StateFolder();

// Reads cards.yaml. False: malformed or unreadable, and `error` says where.
bool LoadMachine(const std::string& folder, Machine* machine, std::string* error);
// The same from text, for tests and for LoadMachine.
bool ParseMachine(const std::string& text, Machine* machine, std::string* error);

// The indices into machine.cards that CUDA shows this process, in order: CUDA_VISIBLE_DEVICES, and
// GPUSHM_SIM_DEVICES, which stands for the device nodes that a container was given.
std::vector<size_t> VisibleToCuda(const Machine& machine);
// The cards that NVML shows: GPUSHM_SIM_DEVICES only.
std::vector<size_t> VisibleToNvml(const Machine& machine);

}  // namespace gpushm::sim
