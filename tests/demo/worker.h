// The program of the demo's containers: one loads the model, the others use it. Says what it saw as
// one line of JSON and keeps its attachment. Each "look" on its standard input it answers with what
// it sees now; anything else ends it.
#pragma once

#include <string>

namespace gpushm::demo {

inline constexpr char kLookWord[] = "look";

struct WorkerOptions {
  bool loads = false;  // Else it attaches what another loaded.
  std::string folder;  // Where the broker's socket is mounted.
  std::string file;
  std::string driver;  // Folder of the driver; empty: the loader's choice.
  int timeout_ms = 60'000;
};

// Returns the exit code.
int RunWorker(const WorkerOptions& options);

}  // namespace gpushm::demo
