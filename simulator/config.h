// The hardware of the simulated machine: cards.yaml of the state folder, or one 80 GiB card.
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
// Card memory that a primary context takes: measured on H200, driver 580.
inline constexpr uint64_t kContextBytes = 523 * kMiB;
inline constexpr uint64_t kMpsContextBytes = 18 * kMiB;  // Of a client of MPS.

using UuidBytes = std::array<uint8_t, 16>;

// What CUDA can see as a device: a GPU, or a MIG instance of one.
struct Card {
  std::string name;
  std::string uuid_text;  // "GPU-..." or "MIG-...".
  UuidBytes uuid{};
  uint64_t memory_bytes = 0;
  uint64_t reserve_bytes = 0;  // Taken by the driver itself.
  uint32_t gpu_index = 0;      // Index of the physical GPU in cards.yaml.
  bool mig = false;            // It is a MIG instance.
  uint32_t gpu_instance = 0;   // Of a MIG instance, from 1. Its compute instance is 0.
  bool mig_mode = false;       // A GPU cut into MIG instances, which CUDA does not see.
  std::vector<std::string> peers;
  bool all_peers = true;
  bool nvlink = true;  // It reaches its peers over NVLink, except those with PCIe only.

  bool CanReach(const Card& other) const;
};

struct Machine {
  std::vector<Card> cards;                     // Each GPU, followed by its MIG instances.
  std::map<std::string, uint64_t> latency_us;  // By function name; absent: none.

  const Card* Find(const UuidBytes& uuid) const;
};

// The state folder: GPUSHM_SIM_DIR, or /var/tmp/gpushm-sim.
std::string StateFolder();

// Reads cards.yaml. False: it is malformed or unreadable; `error` says where.
bool LoadMachine(const std::string& folder, Machine* machine, std::string* error);
// The same from text, for tests and for LoadMachine.
bool ParseMachine(const std::string& text, Machine* machine, std::string* error);

// The indices into machine.cards that CUDA shows to this process, in order. They depend on
// CUDA_VISIBLE_DEVICES and on GPUSHM_SIM_DEVICES, which represents the device nodes that a
// container was given.
std::vector<size_t> VisibleToCuda(const Machine& machine);
// The cards that NVML shows; they depend on GPUSHM_SIM_DEVICES only.
std::vector<size_t> VisibleToNvml(const Machine& machine);

}  // namespace gpushm::sim
