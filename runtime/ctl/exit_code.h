// The exit codes of gpushmctl. The numbers are part of its interface: docs/reference/gpushmctl.md.
#pragma once

#include <span>
#include <string>

#include "platform/base/status.h"

namespace gpushm::ctl {

enum class ExitCode : int {
  kOk = 0,
  kFailure = 1,
  kUsage = 2,
  kNotFound = 3,
  kDenied = 4,
  kExhausted = 5,
  kTimeout = 6,
  kNoBroker = 7,
  kDevice = 8,
  kBusy = 9,
  kExists = 10,
  kOutdated = 11,
  kIncompatible = 12,
  kInterrupted = 130,  // 128 + SIGINT, as shells report it.
};

struct ExitCodeRow {
  ExitCode code;
  const char* meaning;
};
// In ascending order.
std::span<const ExitCodeRow> ExitCodes();

ExitCode ExitCodeFor(Code code);

// For --help: one line for each code.
std::string ExitCodeHelp();

}  // namespace gpushm::ctl
