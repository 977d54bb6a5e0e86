// Runs one kind of hostile pod (hostile_pods.h) in a pod of a real cluster, until SIGTERM: instead
// of the sidecar, or in a container with one.
//
// usage: gpushm-hostile KIND [PLUGIN-ADDRESS]
//        gpushm-hostile --list    each kind and where it runs: "sidecar" or "container"
#include <signal.h>
#include <stdlib.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <string_view>

#include "tests/hostile/hostile_pods.h"

namespace {

std::atomic<bool> stop = false;
static_assert(std::atomic<bool>::is_always_lock_free);

std::string FromEnvironment(const char* name) {
  const char* const value = getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

int main(int argc, char** argv) {
  using gpushm::hostile::Kind;
  using gpushm::hostile::Kinds;
  const std::string_view wanted = argc > 1 ? argv[1] : "";
  if (wanted == "--list") {
    for (const Kind& kind : Kinds()) {
      std::printf("%s %s\n", kind.name, kind.needs_sidecar ? "container" : "sidecar");
    }
    return 0;
  }
  struct sigaction action{};
  action.sa_handler = [](int) { stop = true; };
  sigaction(SIGTERM, &action, nullptr);
  std::string folder = "/tmp/hostile-XXXXXX";
  for (const Kind& kind : Kinds()) {
    if (kind.name != wanted) continue;
    if (mkdtemp(folder.data()) == nullptr) {
      std::perror("mkdtemp /tmp/hostile-XXXXXX");
      return 1;
    }
    // The paths at which CDI and the injector mount them (docs/design/plugin.md), and the chart's
    // ports.
    kind.attack({.link = "/run/gpushm-link/plugin.sock",
                 .sidecar = "/run/gpushm/gpushm.sock",
                 .folder = folder,
                 .simulated_state = FromEnvironment("GPUSHM_SIM_DIR"),
                 .plugin_address = argc > 2 ? argv[2] : "127.0.0.1",
                 .metrics_port = 9400,
                 .probes_port = 9402},
                stop);
    return 0;
  }
  std::fprintf(stderr, "gpushm-hostile: unknown kind \"%.*s\"; --list shows all kinds\n",
               static_cast<int>(wanted.size()), wanted.data());
  return 2;
}
