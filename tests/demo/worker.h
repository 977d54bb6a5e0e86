// The program of the demo's containers: one loads the model, the others use it. It reports what it
// saw as one line of JSON and keeps its attachment. It answers each "look" on standard input with
// what it sees now; any other line ends it.
#pragma once

#include <string>

#include "platform/base/status.h"

namespace gpushm::demo {

inline constexpr char kLookWord[] = "look";

struct WorkerOptions {
  bool loads = false;  // Otherwise it attaches what another process loads.
  std::string folder;  // Where the broker's socket is mounted.
  std::string file;
  std::string driver;  // Folder of the driver; empty: the loader chooses.
  int timeout_ms = 60'000;
};

// What the library last reported to this thread.
Status LastError();

// Returns the exit code.
int RunWorker(const WorkerOptions& options);

}  // namespace gpushm::demo
