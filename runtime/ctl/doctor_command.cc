// gpushmctl doctor: checks what works here, and explains what does not.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "platform/driver/cuda_api.h"
#include "runtime/ctl/commands.h"
#include "runtime/ctl/doctor_facts.h"
#include "runtime/ctl/terminal.h"

namespace gpushm::ctl {
namespace {

// The limit for each try; --timeout sets another.
constexpr int64_t kTryMs = 10'000;

struct BrokerView {
  Result<BrokerFacts> facts;
  size_t cuipc_buffers = 0;
};

// Takes the connection, because it must be closed before the first try: a child that hangs must not
// hold it.
BrokerView AskBroker(Result<Connection> connection) {
  if (!connection) return {std::unexpected(connection.error())};
  BrokerView view{connection->Broker()};
  if (const auto buffers = connection->List()) {
    view.cuipc_buffers = static_cast<size_t>(std::count_if(
        buffers->begin(), buffers->end(),
        [](const gpushm_info& info) { return info.transport == GPUSHM_TRANSPORT_CUIPC; }));
  }
  return view;
}

// `where`: follows the names of the checks.
void TryMemory(const std::string& driver, const std::string& uuid, const std::string& where,
               int64_t wait_ms, std::vector<Check>* checks) {
  const auto memory = ProbeCreate(driver, uuid, wait_ms);
  checks->push_back(CheckTry("create" + where,
                             memory ? Result<void>() : std::unexpected(memory.error()),
                             "2Mi of GPU memory, exported as a descriptor"));
  if (!memory) return;
  const auto writable = ProbeMap(driver, uuid, *memory, /*writable=*/true, wait_ms);
  checks->push_back(CheckTry("attach" + where, writable, "imported and mapped in another process"));
  if (!writable) return;
  checks->push_back(CheckTry("read-only" + where, ProbeMap(driver, uuid, *memory, false, wait_ms),
                             "the driver prevents readers from writing"));
}

// Each try of the driver is a process of its own, which may take `wait_ms`.
std::vector<Check> Examine(const Globals& globals, const BrokerView& broker, int64_t wait_ms) {
  const std::string driver = DriverFolderFromEnvironment();
  std::vector<Check> checks;
  checks.push_back(CheckSocket(GatherSocket(globals.folder, globals.pod_uid)));
  checks.push_back(CheckBroker(broker.facts));
  const BrokerFacts* const facts = broker.facts ? &*broker.facts : nullptr;

  const SystemFacts system = GatherSystem();
  const Result<GpuFacts> gpus = ProbeGpus(driver, wait_ms);
  std::ranges::move(CheckGpus(gpus, facts), std::back_inserter(checks));
  if (gpus) {
    const std::vector<std::string> chosen = ChooseDevices(*gpus, facts);
    for (const std::string& uuid : chosen) {
      TryMemory(driver, uuid, chosen.size() > 1 ? " on " + uuid : "", wait_ms, &checks);
    }
    // MPS is of the machine: one daemon serves all GPUs of a process.
    if (!chosen.empty()) {
      const auto first = std::ranges::find(gpus->devices, chosen.front(), &GpuFacts::Device::uuid);
      if (first->mps) std::ranges::move(CheckMps(*first->mps, system), std::back_inserter(checks));
    }
  }
  std::ranges::move(CheckSystem(system, broker.cuipc_buffers), std::back_inserter(checks));
  return checks;
}

Result<ExitCode> RunDoctor(const Context& context) {
  const Globals& globals = context.globals;
  const int64_t wait_ms = globals.timeout_ms ? std::max<int64_t>(*globals.timeout_ms, 1) : kTryMs;
  const BrokerView broker = AskBroker(context.Connect());
  const std::vector<Check> checks = Examine(globals, broker, wait_ms);
  const std::string text =
      globals.json ? DoctorJson(checks) : DoctorText(checks, context.StdoutStyle().color);
  if (auto done = Print(text); !done) return std::unexpected(done.error());
  return AnyFailed(checks) ? ExitCode::kFailure : ExitCode::kOk;
}

}  // namespace

void AddDoctorCommand(CLI::App* app, Context* context) {
  app->add_subcommand("doctor",
                      "Check everything that gpushm needs here, each GPU check in "
                      "a process of its own, and print a remedy for each failure")
      ->callback([=] { context->action = [=] { return RunDoctor(*context); }; });
}

}  // namespace gpushm::ctl
