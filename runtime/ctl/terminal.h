// Where output goes, and Ctrl-C.
#pragma once

#include <string>
#include <string_view>

#include "platform/base/status.h"

namespace gpushm::ctl {

// Colours: on a terminal that knows them, unless NO_COLOR (no-color.org) or --no-color says no.
bool WantsColor(int fd, bool no_color);
bool IsTerminal(int fd);
// Of the locale's variables, the first that is set (locale(7)) names UTF-8.
bool WantsUnicode();

struct TerminalSize {
  int columns = 80;
  int rows = 24;
};
TerminalSize SizeOf(int fd);

// Writes all of it to standard output, or says why not (a full disk, a closed pipe).
Result<void> Print(std::string_view text);
// To standard error; failures have nowhere to go.
void PrintError(std::string_view text);

// From here on the first Ctrl-C only sets a flag; the second ends the process.
void CatchInterrupt();
bool Interrupted();
// False: interrupted before.
bool WaitOrInterrupt(int64_t wait_ms);

// "gpushmctl: <cause>\nremedy: ...\n".
std::string ErrorText(const Status& status);

}  // namespace gpushm::ctl
