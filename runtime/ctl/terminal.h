// Where output goes, and Ctrl-C.
#pragma once

#include <string>
#include <string_view>

#include "platform/base/status.h"

namespace gpushm::ctl {

// Whether to print colours: on a terminal that supports them, unless NO_COLOR (no-color.org) or
// --no-color is set.
bool WantsColor(int fd, bool no_color);
bool IsTerminal(int fd);
// Whether the first locale variable that is set (see locale(7)) names UTF-8.
bool WantsUnicode();

struct TerminalSize {
  int columns = 80;
  int rows = 24;
};
TerminalSize SizeOf(int fd);

// Writes the whole text to standard output. The error says why that failed (a full disk, a closed
// pipe).
Result<void> Print(std::string_view text);
// Writes to standard error; failures are ignored.
void PrintError(std::string_view text);

// From now on the first Ctrl-C only sets a flag, and the second one ends the process.
void CatchInterrupt();
bool Interrupted();
// Returns false if it was interrupted.
bool WaitOrInterrupt(int64_t wait_ms);

// "gpushmctl: <cause>\nremedy: ...\n".
std::string ErrorText(const Status& status);

}  // namespace gpushm::ctl
