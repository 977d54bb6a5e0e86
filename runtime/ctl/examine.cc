#include "runtime/ctl/examine.h"

#include <algorithm>
#include <iterator>

#include "platform/driver/cuda_api.h"
#include "runtime/ctl/doctor_facts.h"

namespace gpushm::ctl {
namespace {

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

}  // namespace

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

std::vector<Check> Examine(const Place& place, const BrokerView& broker, int64_t wait_ms,
                           const std::optional<Deadline>& whole) {
  const std::string driver = DriverFolderFromEnvironment();
  std::vector<Check> checks;
  checks.push_back(CheckSocket(GatherSocket(place.folder, place.pod_uid)));
  checks.push_back(CheckBroker(broker.facts));
  const BrokerFacts* const facts = broker.facts ? &*broker.facts : nullptr;

  const SystemFacts system = GatherSystem();
  const Result<GpuFacts> gpus = ProbeGpus(driver, wait_ms);
  std::ranges::move(CheckGpus(gpus, facts), std::back_inserter(checks));
  if (gpus) {
    const std::vector<std::string> chosen = ChooseDevices(*gpus, facts);
    for (const std::string& uuid : chosen) {
      if (whole && whole->Passed()) {
        checks.push_back({.level = Level::kWarn,
                          .name = "time",
                          .detail = Concat("GPU ", uuid,
                                           " and those after it were not tried: the "
                                           "time was used up by what came before"),
                          .remedy = "run `gpushmctl doctor`, which tries all of them"});
        break;
      }
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

}  // namespace gpushm::ctl
