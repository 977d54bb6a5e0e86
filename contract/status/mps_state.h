// How the MPS of a pod is: the file that gpushm-mps writes into its pipe folder, about every two
// seconds. The pod's broker and gpushmctl read it.
//
// Contract: as for status.h; members may be added, never renamed or removed.
// Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "platform/base/status.h"

namespace gpushm::status {

inline constexpr char kMpsStateFile[] = "state.json";
inline constexpr char kMpsReady[] = "ready";

struct MpsState {
  // "starting", "ready" (the daemon serves) or "stopping" (it served until now).
  std::string state{"starting"};
  uint64_t daemon_restarts = 0;  // In the life of the pod, as server_restarts.
  uint64_t server_restarts = 0;
  int64_t server_pid = 0;  // In the PID namespace of gpushm-mps; 0: none runs.
  bool server_active = false;
  uint64_t clients = 0;  // Processes that the server serves.
  int64_t time_unix_ms = 0;

  // Whether the daemon serves, as far as one can know: the file is not old.
  bool IsReady() const;
};

// One line of JSON with a line feed.
std::string ToJson(const MpsState& state);
// kCorrupt, with the member that is missing or of another type.
Result<MpsState> MpsStateFromJson(std::string_view json);

// Reads the file in this folder, and never blocks, whatever a process of the pod has put there.
// kNotFound: there is none. kCorrupt: it is not such a file.
Result<MpsState> ReadMpsState(const std::string& folder);

}  // namespace gpushm::status
