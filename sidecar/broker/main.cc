// gpushm-broker, the process in the sidecar.
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <thread>
#include <utility>

#include "platform/daemon/event_loop.h"
#include "platform/daemon/log.h"
#include "platform/daemon/process.h"
#include "sidecar/broker/broker.h"
#include "sidecar/broker/options.h"

namespace gpushm::broker {
namespace {

// The process cannot end before these threads do.
void LogHeldThreads() {
  for (const HeldThread& thread : HeldThreads(getpid())) {
    LogWarning("thread-hangs", {{"thread", thread.tid},
                                {"name", thread.name},
                                {"system_call", thread.system_call},
                                {"kernel_function", thread.kernel_function}});
  }
}

int Refuse(const Status& status) {
  LogError("start-failed", {{"reason", status.ToString()}});
  LogHeldThreads();
  return status.code() == Code::kInvalidArgument ? 2 : 1;
}

// While the broker starts, its thread waits for the plugin and for the driver, for up to a minute
// per call, and reads no signal. This thread does. There is nothing to drain yet, so the process
// just ends.
class EndBySignal {
 public:
  // `over` is an eventfd.
  EndBySignal(int signals, UniqueFd over)
      : over_(std::move(over)), thread_([this, signals] { Wait(signals); }) {}
  ~EndBySignal() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(over_.get(), &one, sizeof one);
    thread_.join();
  }
  EndBySignal(const EndBySignal&) = delete;
  EndBySignal& operator=(const EndBySignal&) = delete;

 private:
  void Wait(int signals) const {
    std::array<pollfd, 2> wanted{{{.fd = over_.get(), .events = POLLIN, .revents = 0},
                                  {.fd = signals, .events = POLLIN, .revents = 0}}};
    while (poll(wanted.data(), wanted.size(), -1) < 0) {
    }
    if (wanted[0].revents != 0) return;  // The loop handles a signal that arrived as well.
    LogInfo("stopped", {});
    LogHeldThreads();
    _exit(0);
  }

  const UniqueFd over_;
  std::thread thread_;
};

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
  UniqueFd started(eventfd(0, EFD_CLOEXEC));
  if (!started) return Refuse(FailSystem(errno, "eventfd").error());
  auto end_by_signal = std::make_unique<EndBySignal>(signals.get(), std::move(started));
  Result<std::unique_ptr<Broker>> broker = Broker::Start(loop->get(), std::move(**options));
  end_by_signal.reset();
  if (!broker) return Refuse(broker.error());
  const auto watched = (*loop)->Watch(signals.get(), EPOLLIN, [&](uint32_t) {
    signalfd_siginfo info{};
    if (read(signals.get(), &info, sizeof info) > 0) (*broker)->Drain();
  });
  if (!watched) return Refuse(watched.error());
  (*loop)->Run();
  const bool failed = (*broker)->failed();
  broker->reset();
  // Never freed: a thread that hangs in the driver may wake up and use the loop.
  [[maybe_unused]] const EventLoop* const kept = loop->release();
  if (!failed) LogInfo("stopped", {});
  LogHeldThreads();
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace gpushm::broker

int main(int argc, char** argv) {
  const int code = gpushm::broker::Main(argc, argv);
  // A thread may hang in the driver of an unhealthy GPU, so exit without running destructors.
  std::fflush(nullptr);
  _exit(code);
}
