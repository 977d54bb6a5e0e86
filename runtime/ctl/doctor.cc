#include "runtime/ctl/doctor.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "runtime/ctl/format.h"
#include "runtime/ctl/json.h"

namespace gpushm::ctl {
namespace {

// Each attach in progress uses one descriptor, and the application needs its own.
constexpr uint64_t kFewOpenFiles = 256;

std::string Octal(uint32_t mode) {
  char text[16];
  std::snprintf(text, sizeof text, "%04o", mode & 07777);
  return text;
}

Check FromStatus(const std::string& name, const Status& status) {
  return {Level::kFail, name, status.what(), status.remedy()};
}

std::string_view LevelName(Level level) {
  return level == Level::kOk ? "ok" : level == Level::kWarn ? "warn" : "fail";
}

size_t CountOf(const std::vector<Check>& checks, Level level) {
  return static_cast<size_t>(std::count_if(checks.begin(), checks.end(),
                                           [&](const Check& c) { return c.level == level; }));
}

Check CheckDeathWatch(const SystemFacts& facts) {
  const std::string kernel = Concat("Linux ", facts.kernel);
  if (facts.peer_pidfd_error == 0) {
    return {Level::kOk, "death watch",
            Concat(kernel, ": the broker itself gets a pidfd of each client")};
  }
  if (facts.pidfd_open_error == 0) {
    return {Level::kOk, "death watch",
            Concat(kernel,
                   ": there is no SO_PEERPIDFD (Linux 6.5), so clients send a pidfd; that works")};
  }
  return {Level::kFail, "death watch",
          Concat(kernel, ": neither SO_PEERPIDFD nor pidfd_open works (",
                 std::strerror(facts.pidfd_open_error), ")"),
          "the broker refuses clients without a pidfd: "
          "use Linux 5.3 or newer, and a seccomp profile that allows pidfd_open"};
}

// cuIpc handles fail between processes with equal PID numbers, in whatever namespaces; measured.
Check CheckCuipc(const SystemFacts& facts, size_t cuipc_buffers) {
  const std::string use =
      cuipc_buffers == 0 ? "" : Concat("; ", cuipc_buffers, " buffers have transport cuipc");
  if (facts.cuda_ipc_library) {
    return {Level::kOk, "cuipc",
            Concat("libgpushm-cudaipc.so gives CUDA another number than PID ", facts.pid, use)};
  }
  if (facts.pid == 1 || facts.own_pid_namespace.value_or(false)) {
    return {Level::kWarn, "cuipc",
            Concat(facts.pid == 1 ? "this process is PID 1"
                                  : "this container has its own PID namespace",
                   ": the entrypoints of two containers are both PID 1, "
                   "and CUDA IPC fails between equal PID numbers",
                   use),
            "vmm buffers need no action; offer cudaMalloc memory with allow_copy, or set "
            "gpushm.io/cuda-ipc: \"true\" in the pod's annotations"};
  }
  if (!facts.own_pid_namespace) {
    return {Level::kWarn, "cuipc",
            Concat("PID ", facts.pid, "; /proc does not show the PID namespace", use),
            "mount /proc to check further; vmm buffers work in any case"};
  }
  return {Level::kOk, "cuipc", Concat("PID ", facts.pid, " in the host's PID namespace", use)};
}

Check CheckVisible(const SystemFacts& facts) {
  const std::string name = "visibility";
  if (facts.cuda_visible_devices &&
      (facts.cuda_visible_devices->empty() || facts.cuda_visible_devices->starts_with("-1"))) {
    return {Level::kWarn, name,
            Concat("CUDA_VISIBLE_DEVICES=\"", *facts.cuda_visible_devices, "\" hides every GPU"),
            "unset it: gpushm already gives a container only its own GPU"};
  }
  std::string text;
  if (facts.cuda_visible_devices) {
    text = Concat("CUDA_VISIBLE_DEVICES=", *facts.cuda_visible_devices);
  }
  if (facts.nvidia_visible_devices) {
    text +=
        Concat(text.empty() ? "" : ", ", "NVIDIA_VISIBLE_DEVICES=", *facts.nvidia_visible_devices);
  }
  return {Level::kOk, name, text.empty() ? "no variable hides GPUs" : text};
}

Check CheckLibc(const SystemFacts& facts) {
  if (facts.musl_loader.empty()) return {Level::kOk, "libc", "glibc"};
  if (facts.glibc_loader) {
    return {Level::kWarn, "libc",
            Concat("both musl (", facts.musl_loader, ") and glibc are installed"),
            "libgpushm.so works only in programs that use glibc"};
  }
  return {Level::kFail, "libc", Concat("this image uses musl: ", facts.musl_loader),
          "neither libgpushm.so nor NVIDIA's driver runs with musl: "
          "use an image with glibc 2.28 or newer"};
}

// What gpushm-mps says, for a process that found no daemon.
std::string NoteOf(const status::MpsState& state) {
  if (state.state != status::kMpsReady || state.IsReady()) {
    return Concat(" (gpushm-mps says: ", state.state, ")");
  }
  return " (gpushm-mps has not written its state for more than 15 s)";
}

}  // namespace

Check CheckSocket(const SocketFacts& facts) {
  const std::string name = "socket";
  if (!facts.folder_exists) {
    return {Level::kFail, name, Concat("the broker's folder does not exist: ", facts.folder),
            "in a pod: add the annotation buffers.gpushm.io/... and check that "
            "the webhook added the sidecar. Elsewhere: set --folder or GPUSHM_DIR"};
  }
  if (facts.error == EACCES || (facts.error == 0 && facts.is_socket && !facts.accessible)) {
    return {
        Level::kFail, name,
        Concat(facts.path,
               facts.error == 0 ? Concat(" has mode ", Octal(facts.mode), ", owner ",
                                         facts.owner_uid, ":", facts.owner_gid)
                                : std::string(" is in a folder that this process may not enter"),
               "; this process runs as ", facts.uid, ":", facts.gid),
        "a pod's socket must have mode 0666; "
        "for a hostIPC pod's socket, run gpushmctl with the socket's group"};
  }
  if (facts.error != 0) {
    return {Level::kFail, name, Concat(facts.path, ": ", std::strerror(facts.error)),
            "the broker is not running: check the sidecar's log. "
            "gpushmctl wait --broker waits for it"};
  }
  if (!facts.is_socket) {
    return {Level::kFail, name, Concat(facts.path, " is not a socket"),
            "remove that file, then restart the broker"};
  }
  return {Level::kOk, name, Concat(facts.path, ", mode ", Octal(facts.mode))};
}

Check CheckBroker(const Result<BrokerFacts>& facts) {
  if (!facts) return FromStatus("broker", facts.error());
  const gpushm_broker_info* const broker = &facts->info;
  const std::string container(broker->container, strnlen(broker->container, GPUSHM_NAME_BYTES));
  return {Level::kOk, "broker",
          Concat("answers, protocol ", broker->protocol, ", container ",
                 container.empty() ? "-" : container, ", pool ", FormatBytes(broker->used_bytes),
                 " of ", FormatBytes(broker->pool_bytes), " used, ", broker->clients, " clients")};
}

std::vector<Check> CheckSystem(const SystemFacts& facts, size_t cuipc_buffers) {
  std::vector<Check> checks = {CheckDeathWatch(facts), CheckCuipc(facts, cuipc_buffers),
                               CheckVisible(facts), CheckLibc(facts)};
  if (facts.open_files < kFewOpenFiles) {
    checks.push_back({Level::kWarn, "open files", Concat("at most ", facts.open_files),
                      "raise the limit: ulimit -n 1024"});
  } else {
    checks.push_back({Level::kOk, "open files", Concat("at most ", facts.open_files)});
  }
  checks.push_back({Level::kOk, "locked memory",
                    facts.locked_bytes == UINT64_MAX
                        ? std::string("no limit")
                        : Concat("at most ", FormatBytes(facts.locked_bytes),
                                 "; attaching needs no locked memory")});
  return checks;
}

namespace {

bool IsVisible(const GpuFacts& facts, const std::string& uuid) {
  return std::ranges::find(facts.devices, uuid, &GpuFacts::Device::uuid) != facts.devices.end();
}

// One check for each GPU of the pod, and one for each pair of them.
void CheckGpusOfPod(const GpuFacts& facts, const BrokerFacts& broker, std::vector<Check>* checks) {
  for (const gpushm_gpu_info& gpu : broker.gpus) {
    const std::string uuid = FormatUuid(gpu.gpu_uuid);
    const std::string text = Concat("GPU ", gpu.gpu, " of the pod, ", uuid);
    if (gpu.lost != 0) {
      checks->push_back({Level::kFail, "broker's gpu", text + ", is lost",
                         "its buffers fail with DEVICE_LOST until it is healthy again; see the "
                         "sidecar's log and docs/guides/runbooks.md"});
    } else if (IsVisible(facts, uuid)) {
      checks->push_back({Level::kOk, "broker's gpu", text + ", is visible here"});
    } else {
      checks->push_back({Level::kFail, "broker's gpu", text + ", is not visible here",
                         "add gpushm.io/attach for this container, so that it gets the GPUs of "
                         "its sidecar, and do not hide one with CUDA_VISIBLE_DEVICES"});
    }
  }
  const auto number = [&](size_t device) -> std::optional<uint32_t> {
    for (const gpushm_gpu_info& gpu : broker.gpus) {
      if (FormatUuid(gpu.gpu_uuid) == facts.devices[device].uuid) return gpu.gpu;
    }
    return std::nullopt;
  };
  for (const GpuFacts::Pair& pair : facts.pairs) {
    const auto first = number(pair.first);
    const auto second = number(pair.second);
    if (!first || !second) continue;
    const std::string text = Concat("GPU ", *first, " and GPU ", *second);
    if (pair.access != PeerAccess::kNone) {
      checks->push_back({Level::kOk, "peers",
                         Concat(text, " access each other's buffers over ",
                                pair.access == PeerAccess::kNvLink ? "NVLink" : "PCIe")});
    } else {
      checks->push_back({Level::kWarn, "peers",
                         text + " cannot access each other's buffers; a copy has to be attached",
                         "attach with stage, or ask for GPUs with NVLink: "
                         "gpushm.io/topology: nvlink"});
    }
  }
}

}  // namespace

std::vector<std::string> ChooseDevices(const GpuFacts& facts, const BrokerFacts* broker) {
  std::vector<std::string> chosen;
  if (broker != nullptr) {
    for (const gpushm_gpu_info& gpu : broker->gpus) {
      const std::string uuid = FormatUuid(gpu.gpu_uuid);
      if (IsVisible(facts, uuid)) chosen.push_back(uuid);
    }
  }
  if (chosen.empty() && !facts.devices.empty()) chosen.push_back(facts.devices.front().uuid);
  return chosen;
}

std::vector<Check> CheckGpus(const Result<GpuFacts>& facts, const BrokerFacts* broker) {
  if (!facts) {
    Check check = FromStatus("driver", facts.error());
    if (broker != nullptr) {
      check.remedy += check.remedy.empty() ? "" : "; ";
      check.remedy += "without the driver, ls, create, and load and save by the broker still work";
    }
    return {check};
  }
  std::vector<Check> checks;
  checks.push_back({Level::kOk, "driver",
                    Concat(facts->path, ", CUDA ", facts->version / 1000, ".",
                           facts->version % 1000 / 10, facts->simulated ? ", simulated" : "")});
  for (const GpuFacts::Device& device : facts->devices) {
    checks.push_back(
        {Level::kOk, "gpu",
         Concat(device.uuid, ", ", device.name, ", ", FormatBytes(device.total_bytes))});
  }
  if (facts->devices.empty()) {
    checks.push_back({Level::kFail, "gpu", "the driver sees no GPU",
                      "add gpushm.io/attach for the container, and unset CUDA_VISIBLE_DEVICES"});
  }
  if (broker == nullptr) return checks;
  if ((broker->info.simulated != 0) != facts->simulated) {
    checks.push_back(
        {Level::kFail, "same driver",
         Concat("the broker uses a ", broker->info.simulated != 0 ? "simulated" : "real",
                " driver, but this process uses a ", facts->simulated ? "simulated" : "real",
                " one"),
         "set GPUSHM_DRIVER to the same folder for both, or for neither"});
    return checks;
  }
  CheckGpusOfPod(*facts, *broker, &checks);
  return checks;
}

std::vector<Check> CheckMps(bool mps, const SystemFacts& facts) {
  std::vector<Check> checks;
  const auto& folder = facts.mps_pipe_folder;
  const auto& state = facts.mps_state;
  if (mps) {
    checks.push_back(
        {Level::kWarn, "mps",
         Concat("on", state ? Concat(": the pod's server has ", state->clients, " clients") : "",
                "; next to a busy process a signal takes 10 us, instead of 2.3 ms when processes "
                "take turns. But a fault in one process, or its end while its kernel runs, ends "
                "the work of all"),
         "use MPS only for processes whose code you trust; see "
         "docs/guides/several-containers.md"});
  } else if (folder && !folder->empty()) {
    checks.push_back({Level::kWarn, "mps",
                      Concat("off, although CUDA_MPS_PIPE_DIRECTORY=", *folder,
                             ": no MPS daemon answers there", state ? NoteOf(*state) : ""),
                      "with gpushm.io/mps, see the log of the container gpushm-mps; otherwise "
                      "start nvidia-cuda-mps-control -d with that folder, and mount the folder "
                      "here"});
  } else {
    checks.push_back({Level::kOk, "mps",
                      "off: processes take turns on the GPU; next to a busy one, a signal takes "
                      "2.3 ms (gpushm.io/mps: \"true\" changes that)"});
  }
  if (state && state->daemon_restarts + state->server_restarts > 0) {
    checks.push_back({Level::kWarn, "mps restarts",
                      Concat("the daemon was restarted ", state->daemon_restarts,
                             " times, and the server alone ", state->server_restarts, " times"),
                      "all clients failed each time: see the log of the container gpushm-mps"});
  }
  const auto limit = [&](const char* name, const char* what,
                         const std::optional<std::string>& value) {
    if (!value || value->empty()) return;
    if (mps) {
      checks.push_back({Level::kOk, name,
                        Concat(what, " = ", *value,
                               " for each process; it stops mistakes, not "
                               "malice")});
    } else {
      checks.push_back({Level::kWarn, name, Concat(what, "=", *value, " has no effect without MPS"),
                        "see the line mps above"});
    }
  };
  limit("memory limit", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", facts.mps_memory_limit);
  limit("compute limit", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", facts.mps_compute);
  for (const std::string& line : facts.memory_cgroups) {
    checks.push_back({Level::kOk, "cgroup limit",
                      Concat("dmem.max = ", line, " bytes for all processes of this container")});
  }
  return checks;
}

Check CheckTry(const std::string& name, const Result<void>& result, const std::string& good) {
  if (!result) return FromStatus(name, result.error());
  return {Level::kOk, name, good};
}

bool AnyFailed(const std::vector<Check>& checks) { return CountOf(checks, Level::kFail) > 0; }

std::string DoctorText(const std::vector<Check>& checks, bool color) {
  size_t width = 0;
  for (const Check& check : checks) width = std::max(width, check.name.size());
  std::string text;
  for (const Check& check : checks) {
    const Color shade = check.level == Level::kOk     ? Color::kGreen
                        : check.level == Level::kWarn ? Color::kYellow
                                                      : Color::kRed;
    const std::string level(LevelName(check.level));
    text += Paint(level, shade, color) + std::string(6 - level.size(), ' ') + check.name +
            std::string(width - check.name.size() + 2, ' ') + Printable(check.detail) + '\n';
    if (!check.remedy.empty()) text += "      remedy: " + Printable(check.remedy) + '\n';
  }
  return text + Concat("\n", CountOf(checks, Level::kOk), " ok, ", CountOf(checks, Level::kWarn),
                       " warnings, ", CountOf(checks, Level::kFail), " failed\n");
}

std::string DoctorJson(const std::vector<Check>& checks) {
  Json list = Json::array();
  for (const Check& check : checks) {
    list.push_back({{"level", LevelName(check.level)},
                    {"name", check.name},
                    {"detail", check.detail},
                    {"remedy", check.remedy}});
  }
  return JsonText({{"checks", list},
                   {"ok", CountOf(checks, Level::kOk)},
                   {"warnings", CountOf(checks, Level::kWarn)},
                   {"failed", CountOf(checks, Level::kFail)}});
}

}  // namespace gpushm::ctl
