#include "runtime/ctl/exit_code.h"

#include <array>
#include <cstdio>

namespace gpushm::ctl {
namespace {

constexpr std::array<ExitCodeRow, 14> kRows = {{
    {ExitCode::kOk, "done (doctor: nothing failed)"},
    {ExitCode::kFailure,
     "another error: a system call or an internal error (doctor: something failed; verify: "
     "other content)"},
    {ExitCode::kUsage,
     "wrong arguments, an invalid request, or a file that cannot be loaded as it is"},
    {ExitCode::kNotFound, "no buffer, file or GPU with that name"},
    {ExitCode::kDenied, "not allowed for this container, or the socket is not accessible"},
    {ExitCode::kExhausted, "the pool, the GPU's memory or a limit is used up"},
    {ExitCode::kTimeout, "the deadline passed"},
    {ExitCode::kNoBroker, "no broker answers"},
    {ExitCode::kDevice, "the driver or the GPU failed, or does not support the request"},
    {ExitCode::kBusy, "busy, loading, contended, or a file that is not whole: try again"},
    {ExitCode::kExists, "the name already exists"},
    {ExitCode::kOutdated, "replaced meanwhile, or its broker or other process has ended"},
    {ExitCode::kIncompatible, "the library and the broker have incompatible versions"},
    {ExitCode::kInterrupted, "interrupted by Ctrl-C"},
}};

}  // namespace

std::span<const ExitCodeRow> ExitCodes() { return kRows; }

ExitCode ExitCodeFor(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
      return ExitCode::kUsage;
    case Code::kNotFound:
      return ExitCode::kNotFound;
    case Code::kDenied:
      return ExitCode::kDenied;
    case Code::kExhausted:
      return ExitCode::kExhausted;
    case Code::kTimeout:
      return ExitCode::kTimeout;
    case Code::kUnavailable:
      return ExitCode::kNoBroker;
    case Code::kDeviceLost:
    case Code::kUnsupported:
    case Code::kDriver:
      return ExitCode::kDevice;
    case Code::kContended:
    case Code::kBusy:
    case Code::kLoading:
      return ExitCode::kBusy;
    case Code::kAlreadyExists:
      return ExitCode::kExists;
    case Code::kOrphaned:
    case Code::kStale:
    case Code::kPeerDied:
    case Code::kEnded:
      return ExitCode::kOutdated;
    case Code::kIncompatible:
    case Code::kCorrupt:
      return ExitCode::kIncompatible;
    case Code::kSystem:
    case Code::kForked:
    case Code::kInternal:
      return ExitCode::kFailure;
  }
  return ExitCode::kFailure;
}

std::string ExitCodeHelp() {
  std::string text = "Exit codes:\n";
  for (const ExitCodeRow& row : kRows) {
    char number[16];
    std::snprintf(number, sizeof number, "  %3d  ", static_cast<int>(row.code));
    text += number;
    text += row.meaning;
    text += '\n';
  }
  return text;
}

}  // namespace gpushm::ctl
