// gpushm-other-plugin RESOURCE [ID ...]: runs OtherPlugin as a process, until SIGTERM.
#include "plugin/kubelet/testing/other_plugin.h"

#include <signal.h>
#include <sys/prctl.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s RESOURCE [ID ...]\n", argv[0]);
    return 2;
  }
  // For the case that its parent is nsenter, which forwards no signals.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigprocmask(SIG_BLOCK, &ending, nullptr);  // Before any thread starts.
  using gpushm::plugin::kubelet::testing::OtherPlugin;
  std::vector<std::string> ids(argv + 2, argv + argc);
  if (ids.empty()) ids = {OtherPlugin::kForeignGpu};
  const OtherPlugin plugin(gpushm::plugin::kubelet::Registration::Options().folder, argv[1], ids);
  if (!plugin.serves()) return 1;
  int signal = 0;
  return sigwait(&ending, &signal);
}
