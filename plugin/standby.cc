#include "plugin/standby.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <utility>

#include "platform/base/clock.h"
#include "platform/daemon/event_loop.h"
#include "platform/daemon/log.h"
#include "platform/daemon/process.h"
#include "platform/daemon/unix_socket.h"
#include "plugin/cdi/host_files.h"
#include "plugin/kubelet/registration.h"
#include "plugin/monitoring/probes.h"

namespace gpushm::plugin {
namespace {

constexpr int64_t kStandbyLookMs = 10;
// Time for a plugin that has released its lock to hand over.
constexpr int64_t kEndsMs = 8000;
// An update takes seconds. A plugin that waits longer was probably installed a second time.
constexpr int64_t kTellMs = 60'000;

// Whether this process could do what a serving plugin does in the kubelet's and the runtime's
// folders.
Result<void> CheckFolders(const DaemonOptions& options) {
  const config::PluginConfig& config = options.config;
  if (config.kubelet == config::KubeletMode::kNone) return {};
  for (const char* const file : {cdi::kLibraryName, cdi::kCtlName}) {
    const std::string path = Concat(options.payload_folder, "/", file);
    if (options.payload_folder.empty() || access(path.c_str(), R_OK) == 0) continue;
    return FailSystem(errno, Concat("read ", path), "set --payload to the folder that has it");
  }
  if (access(config.cdi_folder.c_str(), W_OK) != 0) {
    return FailSystem(errno, Concat("write to ", config.cdi_folder));
  }
  // Not a name that a serving plugin uses.
  const auto socket = ListeningSocket::Bind(Concat(config.kubelet_folder, "/gpushm-standby.sock"));
  if (!socket) return std::unexpected(socket.error());
  return {};
}

}  // namespace

Result<std::optional<NodeLocks>> StandBy(const DaemonOptions& options, int signals) {
  const std::string& folder = options.config.state_folder;
  if (auto made = Daemon::MakeStateFolder(folder); !made) return std::unexpected(made.error());
  NodeLocks locks;
  Result<UniqueFd> serving = TryLockFile(folder + kServingLock);
  if (serving) {  // No plugin serves, or one is still shutting down.
    locks.serving = std::move(*serving);
    const Deadline ended = Deadline::AfterMs(kEndsMs);
    while (options.config.kubelet == config::KubeletMode::kAuto && !ended.Passed() &&
           !kubelet::Registration::CheckAlone({.folder = options.config.kubelet_folder})) {
      poll(nullptr, 0, kStandbyLookMs);
    }
    return std::optional(std::move(locks));
  }
  if (serving.error().code() != Code::kBusy) return std::unexpected(serving.error());
  if (auto ready = Daemon::CheckNode(options); !ready) return std::unexpected(ready.error());
  if (auto ready = CheckFolders(options); !ready) return std::unexpected(ready.error());
  Result<UniqueFd> standby =
      LockFile(folder + kStandbyLock,
               Status(Code::kAlreadyExists, Concat("another plugin stands by for ", folder),
                      "run at most one serving and one standby plugin per node"));
  if (!standby) return std::unexpected(standby.error());
  locks.standby = std::move(*standby);
  Result<std::unique_ptr<EventLoop>> loop = EventLoop::Create();
  if (!loop) return std::unexpected(loop.error());
  std::unique_ptr<http::Server> probes;
  if (const std::string& address = options.config.monitoring.probes_address; !address.empty()) {
    auto served = monitoring::ServeOn(
        address, monitoring::ProbePaths({.loops = {{"that waits for the serving plugin",
                                                    [&] { return (*loop)->BusyMs(); }}},
                                         .since_look_ms = [] { return int64_t{0}; },
                                         .registration = {}}));
    if (!served) return std::unexpected(served.error());
    probes = std::move(*served);
  }
  LogInfo("standing-by", {{"folder", folder}});
  const int64_t since_ns = MonotonicNs();
  const std::function<void()> look = [&] {
    serving = TryLockFile(folder + kServingLock);
    if (serving || serving.error().code() != Code::kBusy) return (*loop)->Stop();
    (*loop)->After(kStandbyLookMs, look);
  };
  look();
  const std::function<void()> tell = [&] {
    (*loop)->After(kTellMs, [&] {
      LogWarning("still-standing-by",
                 {{"folder", folder},
                  {"waited_ms", (MonotonicNs() - since_ns) / 1'000'000},
                  {"reason",
                   "another plugin serves this node and does not end: check for a second DaemonSet "
                   "of gpushm (kubectl get daemonsets -A), and for minReadySeconds"}});
      tell();
    });
  };
  tell();
  const auto watched = (*loop)->Watch(signals, EPOLLIN, [&](uint32_t) {
    signalfd_siginfo info{};
    if (read(signals, &info, sizeof info) > 0) (*loop)->Stop();
  });
  if (!watched) return std::unexpected(watched.error());
  (*loop)->Run();
  probes.reset();
  if (!serving && serving.error().code() == Code::kBusy) return std::optional<NodeLocks>();
  if (!serving) return std::unexpected(serving.error());
  locks.serving = std::move(*serving);
  LogInfo("taking-over", {{"waited_ms", (MonotonicNs() - since_ns) / 1'000'000}});
  return std::optional(std::move(locks));
}

}  // namespace gpushm::plugin
