// gpushm-injector: the admission webhook.
#include <signal.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <exception>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "platform/base/version.h"
#include "platform/daemon/event_loop.h"
#include "platform/daemon/log.h"
#include "platform/daemon/process.h"
#include "sidecar/injector/inject.h"
#include "sidecar/injector/options.h"
#include "sidecar/injector/templates.h"

namespace gpushm::injector {
namespace {

// The kubelet updates the files of a changed Secret within about a minute.
constexpr int64_t kCertificateLookMs = 5000;

int Refuse(const Status& status) {
  LogError("start-failed", {{"reason", status.ToString()}});
  return status.code() == Code::kInvalidArgument ? 2 : 1;
}

uint64_t Random() {
  uint64_t number = 0;
  // For 8 bytes it never returns fewer once the kernel has started.
  if (getrandom(&number, sizeof number, 0) != sizeof number) std::abort();
  return number;
}

// Nothing if the injector makes no templates.
MakeTemplate MakerFor(const std::optional<kubernetes::ApiAddress>& api) {
  if (!api) return {};
  return [templates = std::make_shared<Templates>(*api)](const std::string& name_space,
                                                         const ClaimTemplate& wanted) {
    return templates->Make(name_space, wanted);
  };
}

class Injector {
 public:
  Injector(EventLoop* loop, const Options& options,
           const std::optional<kubernetes::ApiAddress>& api)
      : loop_(loop),
        options_(options),
        certificates_(options.certificates),
        admission_(options.settings, Random),
        server_(options.server, &admission_, MakerFor(api), &certificates_, &metrics_) {}

  Result<void> Start() {
    const Result<bool> loaded = certificates_.Load();
    if (!loaded) return std::unexpected(loaded.error());
    metrics_.SetCertificateExpiry(certificates_.expires_s());
    if (auto started = server_.Start(); !started) return started;
    LookAgain();
    LogInfo("ready", {{"version", kVersion},
                      {"port", server_.port()},
                      {"http_port", server_.http_port()},
                      {"certificate_expires_unix_s", certificates_.expires_s()}});
    return {};
  }

  // Ends the loop after a delay, so that the API server first notices that this replica is not
  // ready.
  void Drain() {
    if (std::exchange(draining_, true)) return loop_->Stop();  // On a second signal: stop at once.
    LogInfo("draining", {{"drain_ms", options_.drain_ms}});
    server_.Drain();
    loop_->After(options_.drain_ms, [this] { loop_->Stop(); });
  }

  void Stop() { server_.Stop(); }

 private:
  void LookAtCertificates() {
    const Result<bool> loaded = certificates_.Load();
    if (!loaded) {
      metrics_.CertificateRefused();
      LogWarning("certificate-refused", {{"reason", loaded.error().ToString()}});
    } else if (*loaded) {
      metrics_.SetCertificateExpiry(certificates_.expires_s());
      LogInfo("certificate-loaded", {{"certificate_expires_unix_s", certificates_.expires_s()}});
    }
    LookAgain();
  }
  void LookAgain() {
    loop_->After(kCertificateLookMs, [this] { LookAtCertificates(); });
  }

  EventLoop* const loop_;
  const Options options_;
  Certificates certificates_;
  Metrics metrics_;
  const Admission admission_;
  Server server_;
  bool draining_ = false;
};

// Prints the template that a pod needs as well, so nothing has to be made.
int PrintInjected(Settings settings) {
  settings.makes_claims = true;
  const std::string manifest((std::istreambuf_iterator<char>(std::cin)), {});
  std::vector<std::string> warnings;
  const auto injected = Inject(settings, manifest, &warnings);
  for (const std::string& warning : warnings) std::cerr << "warning: " << warning << "\n";
  if (!injected) {
    std::cerr << "gpushm-injector: " << injected.error().ToString() << "\n";
    return 1;
  }
  std::cout << *injected << std::flush;
  return std::cout ? 0 : 1;
}

int Main(int argc, char** argv) {
  ConfigureLog({});
  int exit_code = 0;
  const Result<std::optional<Options>> options = ParseOptions(argc, argv, &exit_code);
  if (!options) return Refuse(options.error());
  if (!*options) return exit_code;
  if ((*options)->inject) return PrintInjected((*options)->settings);
  ConfigureLog((*options)->log);
  KeepHeapSmall();
  RaiseDescriptorLimit();
  const UniqueFd signals = SignalDescriptor({SIGTERM, SIGINT});
  const Result<std::unique_ptr<EventLoop>> loop = EventLoop::Create();
  if (!loop) return Refuse(loop.error());
  std::optional<kubernetes::ApiAddress> api;
  if ((*options)->settings.makes_claims) {
    auto found = kubernetes::FindApi((*options)->api_server, (*options)->api_credentials);
    if (!found) return Refuse(found.error());
    api = std::move(*found);
  }
  Injector injector(loop->get(), **options, api);
  if (auto started = injector.Start(); !started) return Refuse(started.error());
  const auto watched = (*loop)->Watch(signals.get(), EPOLLIN, [&](uint32_t) {
    signalfd_siginfo info{};
    if (read(signals.get(), &info, sizeof info) > 0) injector.Drain();
  });
  if (!watched) return Refuse(watched.error());
  (*loop)->Run();
  injector.Stop();
  LogInfo("stopped", {});
  return 0;
}

}  // namespace
}  // namespace gpushm::injector

int main(int argc, char** argv) try {
  return gpushm::injector::Main(argc, argv);
} catch (const std::exception& error) {
  std::cerr << "gpushm-injector: " << error.what() << "\n";
  return 1;
}
