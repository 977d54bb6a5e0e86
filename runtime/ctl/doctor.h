// The findings of gpushmctl doctor, computed from plain facts. Pure: doctor_facts.h gathers the
// facts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "contract/status/mps_state.h"
#include "platform/base/status.h"
#include "platform/driver/device.h"
#include "runtime/ctl/connection.h"

namespace gpushm::ctl {

enum class Level { kOk, kWarn, kFail };

struct Check {
  Level level = Level::kOk;
  std::string name;
  std::string detail;
  std::string remedy{};
};

struct SocketFacts {
  std::string folder;
  std::string path;
  bool folder_exists = false;
  int error = 0;  // The errno of stat() on the socket; 0: the socket exists.
  bool is_socket = false;
  uint32_t mode = 0;
  uint32_t owner_uid = 0;
  uint32_t owner_gid = 0;
  bool accessible = false;  // By access(2): connecting needs write permission.
  uint32_t uid = 0;         // This process.
  uint32_t gid = 0;
};
Check CheckSocket(const SocketFacts& facts);

// Judges the broker's answer, or the reason why there is none.
Check CheckBroker(const Result<BrokerFacts>& broker);

struct SystemFacts {
  std::string kernel;        // uname -r
  int peer_pidfd_error = 0;  // errno of SO_PEERPIDFD; 0: it works.
  int pidfd_open_error = 0;  // errno of pidfd_open; 0: it works.
  int32_t pid = 0;
  std::optional<bool> own_pid_namespace;  // nullopt: /proc does not show it.
  uint64_t open_files = 0;                // Soft RLIMIT_NOFILE.
  uint64_t locked_bytes = 0;              // Soft RLIMIT_MEMLOCK; UINT64_MAX: none.
  std::optional<std::string> cuda_visible_devices;
  std::optional<std::string> nvidia_visible_devices;
  std::optional<std::string> mps_pipe_folder;
  std::optional<std::string> mps_memory_limit;  // CUDA_MPS_PINNED_DEVICE_MEM_LIMIT
  std::optional<std::string> mps_compute;       // CUDA_MPS_ACTIVE_THREAD_PERCENTAGE
  std::vector<std::string> memory_cgroups;      // Lines of dmem.max that limit: "REGION BYTES".
  std::optional<status::MpsState> mps_state;    // What gpushm-mps wrote into the pipe folder.
  bool cuda_ipc_library = false;                // libgpushm-cudaipc.so is loaded.
  std::string musl_loader;                      // Its path; empty if there is none.
  bool glibc_loader = true;  // Whether a loader exists that can load libgpushm.so.
};
// `cuipc_buffers`: the number of the pod's buffers with that transport.
std::vector<Check> CheckSystem(const SystemFacts& facts, size_t cuipc_buffers);

struct GpuFacts {
  struct Device {
    std::string uuid;
    std::string name;
    uint64_t total_bytes = 0;
    std::optional<bool> mps{};  // nullopt: this driver does not report it.
  };
  std::string path;
  int version = 0;  // 13000 is 13.0.
  bool simulated = false;
  struct Pair {
    size_t first = 0;  // Index in `devices`.
    size_t second = 0;
    PeerAccess access = PeerAccess::kNone;
  };
  std::vector<Device> devices;
  std::vector<Pair> pairs{};
};
// `broker` is null if no broker answers.
std::vector<Check> CheckGpus(const Result<GpuFacts>& facts, const BrokerFacts* broker);
// The UUIDs of the GPUs on which to try memory: those of the broker that are visible here, or else
// the first one; empty if there is none.
std::vector<std::string> ChooseDevices(const GpuFacts& facts, const BrokerFacts* broker);

// Whether processes share the GPU by MPS, and within which limits.
std::vector<Check> CheckMps(bool mps, const SystemFacts& facts);

// `name`: what was tried; `good`: what its success means.
Check CheckTry(const std::string& name, const Result<void>& result, const std::string& good);

bool AnyFailed(const std::vector<Check>& checks);
std::string DoctorText(const std::vector<Check>& checks, bool color);
std::string DoctorJson(const std::vector<Check>& checks);

}  // namespace gpushm::ctl
