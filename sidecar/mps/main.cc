// gpushm-mps: keeps NVIDIA's MPS control daemon running for the containers of a pod.
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>
#include <memory>
#include <string>

#include "contract/status/mps_state.h"
#include "platform/base/clock.h"
#include "platform/base/version.h"
#include "platform/daemon/event_loop.h"
#include "platform/daemon/log.h"
#include "platform/daemon/process.h"
#include "sidecar/mps/supervisor.h"

namespace gpushm::mps {
namespace {

struct Given {
  Options options;
  LogConfig log;
  bool waits = false;
  int64_t timeout_s = 60;
};

void Declare(CLI::App& app, Given* given) {
  app.set_version_flag("--version", std::string(kVersion));
  app.add_option("--pipe-folder", given->options.folder,
                 "Folder of the daemon's socket, and of state.json; clients name it in "
                 "CUDA_MPS_PIPE_DIRECTORY (/run/gpushm-mps)");
  app.add_option_function<uid_t>(
      "--server-uid", [given](const uid_t& uid) { given->options.server_uid = uid; },
      "Start the server of this uid before its first client comes (the daemon starts it then)");
  app.add_option("--program", given->options.program,
                 "The daemon's program (nvidia-cuda-mps-control)");
  app.add_option_function<std::string>(
         "--log-format",
         [given](const std::string& format) {
           given->log.format = format == "json" ? LogFormat::kJson : LogFormat::kText;
         },
         "Log format: text or json (text)")
      ->check(CLI::IsMember({"text", "json"}));
  CLI::App* const wait =
      app.add_subcommand("wait", "Wait until the daemon of another gpushm-mps serves clients");
  wait->fallthrough();
  wait->add_option("--timeout", given->timeout_s, "Seconds to wait (60)")
      ->check(CLI::Range(int64_t{0}, int64_t{3600}));
  wait->callback([given] { given->waits = true; });
}

// Why the daemon that serves will not serve this uid, which is that of the containers to come;
// empty if it may.
std::string Unserved(const std::string& folder) {
  struct stat info{};
  if (stat((folder + "/control").c_str(), &info) != 0 || info.st_uid == 0 ||
      info.st_uid == geteuid()) {
    return {};
  }
  return Concat("the MPS daemon runs as uid ", info.st_uid,
                " and serves only that one; this is uid ", geteuid(),
                ": set runAsUser: ", info.st_uid,
                " in the pod, or give the pod with the daemon gpushm.io/mps-uid: any");
}

int WaitUntilReady(const Given& given) {
  const std::string& folder = given.options.folder;
  if (access(folder.c_str(), F_OK) != 0) {
    std::cerr << "gpushm-mps: " << folder
              << " does not exist: the pod's ResourceClaim has no request named mps; "
                 "`gpushmctl claim --mps` prints one that has\n";
    return 1;
  }
  const int64_t end_ns = MonotonicNs() + given.timeout_s * 1'000'000'000;
  do {
    const auto state = status::ReadMpsState(folder);
    // The file alone may be a killed container's.
    if (state && state->IsReady() && DaemonListens(folder)) {
      const std::string why = Unserved(folder);
      if (!why.empty()) std::cerr << "gpushm-mps: " << why << "\n";
      return why.empty() ? 0 : 1;
    }
    poll(nullptr, 0, 20);
  } while (MonotonicNs() < end_ns);
  std::cerr
      << "gpushm-mps: the MPS daemon is not ready after " << given.timeout_s
      << " s: see the log of its container gpushm-mps; with gpushm.io/claim it is in the pod with "
         "gpushm.io/role: mps\n";
  return 1;
}

int Refuse(const Status& status) {
  LogError("mps-start-failed", {{"reason", status.ToString()}});
  return 1;
}

int Serve(const Given& given) {
  const UniqueFd signals = SignalDescriptor({SIGTERM, SIGINT, SIGCHLD});
  const Result<std::unique_ptr<EventLoop>> loop = EventLoop::Create();
  if (!loop) return Refuse(loop.error());
  Supervisor supervisor(loop->get(), given.options);
  const auto watched = (*loop)->Watch(signals.get(), EPOLLIN, [&](uint32_t) {
    signalfd_siginfo info{};
    if (read(signals.get(), &info, sizeof info) <= 0) return;
    if (info.ssi_signo == SIGCHLD) return supervisor.OnChildren();
    supervisor.Stop([&] { (*loop)->Stop(); });
  });
  if (!watched) return Refuse(watched.error());
  if (auto started = supervisor.Start(); !started) return Refuse(started.error());
  (*loop)->Run();
  LogInfo("stopped", {});
  return 0;
}

int Main(int argc, char** argv) {
  CLI::App app(
      "gpushm-mps keeps NVIDIA's MPS control daemon running, so that the kernels of several "
      "containers run at the same time.\n"
      "Exit codes: 0 on success, 1 on failure, 2 if an option is not valid.",
      "gpushm-mps");
  Given given;
  Declare(app, &given);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  ConfigureLog(given.log);
  return given.waits ? WaitUntilReady(given) : Serve(given);
}

}  // namespace
}  // namespace gpushm::mps

int main(int argc, char** argv) try {
  return gpushm::mps::Main(argc, argv);
} catch (const std::exception& error) {
  std::cerr << "gpushm-mps: " << error.what() << "\n";
  return 1;
}
