// gpushm-plugin: one process per node. `serve` runs the plugin, `inventory` prints what it would
// advertise, `simulate` gives the node simulated GPUs.
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>

#include "platform/base/version.h"
#include "platform/daemon/event_loop.h"
#include "platform/daemon/log.h"
#include "platform/daemon/process.h"
#include "platform/driver/cuda_api.h"
#include "plugin/cdi/host_files.h"
#include "plugin/daemon.h"
#include "plugin/inventory/report.h"
#include "plugin/options.h"
#include "plugin/standby.h"

namespace gpushm::plugin {
namespace {

int ExitCode(const Status& status) { return status.code() == Code::kInvalidArgument ? 2 : 1; }

int Refuse(const Status& status) {
  std::cerr << "gpushm-plugin: " << status.ToString() << "\n";
  return ExitCode(status);
}

// For `serve`, whose standard error is a log.
int RefuseToServe(const Status& status) {
  LogError("start-failed", {{"reason", status.ToString()}});
  return ExitCode(status);
}

int PrintInventory(const inventory::Rules& rules, bool json) {
  const Result<const NvmlApi*> nvml = NvmlApi::Load(DriverFolderFromEnvironment());
  if (!nvml) return Refuse(nvml.error());
  std::vector<std::string> unread;
  const Result<std::vector<inventory::Device>> devices = inventory::ReadDevices(**nvml, &unread);
  if (!devices) return Refuse(devices.error());
  for (const std::string& reason : unread)
    std::cerr << "gpushm-plugin: skipped a GPU: " << reason << "\n";
  const Result<inventory::Advertisement> advertisement = inventory::Advertise(*devices, rules);
  if (!advertisement) return Refuse(advertisement.error());
  std::cout << (json ? inventory::Json(*advertisement, rules)
                     : inventory::Table(*advertisement, rules));
  return 0;
}

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

int Serve(DaemonOptions options, bool standby) {
  KeepHeapSmall();  // 19 MiB instead of 32.6 under the load of scrape_bench.
  RaiseDescriptorLimit();
  options.driver_folder = DriverFolderFromEnvironment();
  if (const std::string sim = Environment("GPUSHM_SIM_DIR"); !sim.empty()) {
    options.simulated_state = sim;
  }
  ConfigureLog(options.config.log);
  const binding::Pod pod{Environment("POD_NAMESPACE"), Environment("POD_NAME")};
  if (!pod.name.empty()) options.own_pod = pod;
  options.node_name = Environment("NODE_NAME");
  const UniqueFd signals = SignalDescriptor({SIGTERM, SIGINT});
  NodeLocks locks;
  if (standby) {
    Result<std::optional<NodeLocks>> waited = StandBy(options, signals.get());
    if (!waited) return RefuseToServe(waited.error());
    if (!*waited) {
      LogInfo("stopped", {});
      return 0;
    }
    locks = std::move(**waited);
  }
  const Result<std::unique_ptr<EventLoop>> loop = EventLoop::Create();
  if (!loop) return RefuseToServe(loop.error());
  Result<std::unique_ptr<Daemon>> daemon =
      Daemon::Start(loop->get(), std::move(options), std::move(locks));
  if (!daemon) return RefuseToServe(daemon.error());
  const auto watched = (*loop)->Watch(signals.get(), EPOLLIN, [&](uint32_t) {
    signalfd_siginfo info{};
    if (read(signals.get(), &info, sizeof info) > 0) (*loop)->Stop();
  });
  if (!watched) return RefuseToServe(watched.error());
  (*loop)->Run();
  daemon->reset();
  LogInfo("stopped", {});
  return 0;
}

struct Simulated {
  std::string driver = "/usr/lib/gpushm/driver-sim";
  std::string state_folder = cdi::kStateFolder;
  unsigned gpus = 1;
  uint64_t memory_bytes = uint64_t{16} << 30;

  void AddTo(CLI::App* app) {
    app->add_option("--driver", driver, "Folder of the simulated driver")->capture_default_str();
    app->add_option("--state-folder", state_folder, "State folder, the same as for `serve`")
        ->capture_default_str();
    app->add_option("--gpus", gpus, "Number of GPUs, 1 to 64")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
    app->add_option("--memory", memory_bytes, "Memory of each GPU, such as 16Gi (16Gi)")
        ->transform(CLI::AsSizeValue(false));
  }
};

int Simulate(const Simulated& wanted) {
  Result<cdi::HostFiles> host = cdi::HostFiles::Open(wanted.state_folder, wanted.state_folder);
  if (!host) return Refuse(host.error());
  const auto driver = host->InstallSimulatedDriver(wanted.driver);
  if (!driver) return Refuse(driver.error());
  const auto cards = host->InstallSimulatedCards(wanted.gpus, wanted.memory_bytes);
  if (!cards) return Refuse(cards.error());
  std::cout << "driver-root: " << host->simulated_driver() << "\n"
            << "GPUSHM_SIM_DIR=" << host->simulated_cards() << "\n";
  return 0;
}

int Main(int argc, char** argv) {
  CLI::App app(
      "gpushm-plugin hands out shareable GPU memory of a node.\n"
      "Environment: GPUSHM_DRIVER (folder of libnvidia-ml.so.1).\n"
      "Exit codes: 0 success, 1 failure, 2 invalid option or configuration.",
      "gpushm-plugin");
  app.set_version_flag("--version", std::string(kVersion));
  app.require_subcommand(1);
  std::string format = "table";
  CLI::App* const inventory = app.add_subcommand(
      "inventory", "Print the GPUs and what the plugin would advertise to the kubelet");
  const ConfigFlags inventory_flags(inventory, ConfigFlags::Which::kInventory);
  inventory->add_option("-o,--output", format, "Output format: table or json")
      ->check(CLI::IsMember({"table", "json"}));
  CLI::App* const serve = app.add_subcommand("serve", "Serve the node's kubelet and its brokers");
  const ConfigFlags serve_flags(serve, ConfigFlags::Which::kAll);
  DaemonOptions options;
  serve->add_option("--payload", options.payload_folder,
                    "Folder with libgpushm.so.0 and gpushmctl, which containers get");
  bool standby = false;
  serve->add_flag("--standby", standby,
                  "If another plugin serves this node, wait for its end and take over, instead of "
                  "refusing to start");
  CLI::App* const simulate = app.add_subcommand(
      "simulate", "Install the simulated driver and its GPUs in the state folder, and print where");
  Simulated simulated;
  simulated.AddTo(simulate);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (simulate->parsed()) return Simulate(simulated);
  const ConfigFlags& flags = serve->parsed() ? serve_flags : inventory_flags;
  ConfigureLog({});
  Result<config::PluginConfig> config = flags.Read();
  if (!config) return serve->parsed() ? RefuseToServe(config.error()) : Refuse(config.error());
  if (!serve->parsed()) return PrintInventory(config->rules, format == "json");
  options.config = std::move(*config);
  return Serve(std::move(options), standby);
}

}  // namespace
}  // namespace gpushm::plugin

int main(int argc, char** argv) try {
  return gpushm::plugin::Main(argc, argv);
} catch (const std::exception& error) {
  std::cerr << "gpushm-plugin: " << error.what() << "\n";
  return 1;
}
