// gpushm-other-plugin RESOURCE [FOLDER]: OtherPlugin as a process, until SIGTERM.
#include "plugin/kubelet/testing/other_plugin.h"

#include <signal.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s RESOURCE [FOLDER]\n", argv[0]);
    return 2;
  }
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigprocmask(SIG_BLOCK, &ending, nullptr);  // Before any thread starts.
  const gpushm::plugin::kubelet::testing::OtherPlugin plugin(
      argc > 2 ? argv[2] : gpushm::plugin::kubelet::Registration::Options().folder, argv[1]);
  if (!plugin.serves()) return 1;
  int signal = 0;
  return sigwait(&ending, &signal);
}
