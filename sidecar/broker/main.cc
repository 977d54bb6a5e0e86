// gpushm-broker: the process of the sidecar. `gpushm-broker loader ...` and `... releaser ...` are
// its short-lived children.
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string_view>

#include "runtime/daemon/event_loop.h"
#include "runtime/daemon/log.h"
#include "runtime/daemon/process.h"
#include "sidecar/broker/broker.h"
#include "sidecar/broker/loader.h"
#include "sidecar/broker/options.h"
#include "sidecar/broker/releaser.h"

namespace gpushm::broker {
namespace {

int Refuse(const Status& status) {
  LogError("start-failed", {{"reason", status.ToString()}});
  return status.code() == Code::kInvalidArgument ? 2 : 1;
}

int Main(int argc, char** argv) {
  ConfigureLog({});
  int exit_code = 0;
  Result<std::optional<BrokerOptions>> options = ParseOptions(argc, argv, &exit_code);
  if (!options) return Refuse(options.error());
  if (!*options) return exit_code;
  ConfigureLog((*options)->config.log);
  RaiseDescriptorLimit();

  const UniqueFd signals = SignalDescriptor({SIGTERM, SIGINT});
  Result<std::unique_ptr<EventLoop>> loop = EventLoop::Create();
  if (!loop) return Refuse(loop.error());
  Result<std::unique_ptr<Broker>> broker = Broker::Start(loop->get(), std::move(**options));
  if (!broker) return Refuse(broker.error());
  const auto watched = (*loop)->Watch(signals.get(), EPOLLIN, [&](uint32_t) {
    signalfd_siginfo info{};
    if (read(signals.get(), &info, sizeof info) > 0) (*broker)->Drain();
  });
  if (!watched) return Refuse(watched.error());
  (*loop)->Run();
  broker->reset();
  LogInfo("stopped", {});
  return 0;
}

}  // namespace
}  // namespace gpushm::broker

int main(int argc, char** argv) {
  const std::string_view child = argc > 1 ? argv[1] : "";
  const int code = child == "loader"     ? gpushm::broker::LoaderMain(argc - 1, argv + 1)
                   : child == "releaser" ? gpushm::broker::ReleaserMain(argc - 1, argv + 1)
                                         : gpushm::broker::Main(argc, argv);
  // A thread may hang in a sick driver: leave without its destructors.
  std::fflush(nullptr);
  _exit(code);
}
