// Faults that a test asks for while the program runs: faults.yaml of the state folder, or
// GPUSHM_SIM_FAULT (the same YAML as text, or an absolute path). README.md documents the format.
//
// Threads: thread-safe; the file is read again when it has changed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace gpushm::sim {

struct Xid {
  std::string gpu;  // UUID, or the index as text.
  uint64_t number = 0;
};

struct Faults {
  std::map<std::string, int> results;       // Function -> the CUresult or nvmlReturn_t it gives.
  std::map<std::string, uint64_t> hang_ms;  // Function -> how long it blocks first; "*": every one.
  std::vector<Xid> xids;
  std::vector<std::string> lost;  // GPUs that fell off the bus.

  bool IsLost(const std::string& uuid, uint32_t index) const;
};

// Never null. A malformed file is reported on stderr once and injects nothing.
std::shared_ptr<const Faults> CurrentFaults(const std::string& folder);

// False: malformed, and `error` says where.
bool ParseFaults(const std::string& text, Faults* faults, std::string* error);

}  // namespace gpushm::sim
