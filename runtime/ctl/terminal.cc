#include "runtime/ctl/terminal.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "platform/base/clock.h"
#include "runtime/ctl/format.h"

namespace gpushm::ctl {
namespace {

volatile sig_atomic_t interrupted = 0;
void OnInterrupt(int) { interrupted = 1; }

int WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

}  // namespace

bool IsTerminal(int fd) { return isatty(fd) == 1; }

bool WantsColor(int fd, bool no_color) {
  const char* variable = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  const bool dumb = term == nullptr || std::string_view(term) == "dumb";
  return !no_color && !(variable != nullptr && *variable != '\0') && !dumb && IsTerminal(fd);
}

bool WantsUnicode() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    return strcasestr(value, "utf-8") != nullptr || strcasestr(value, "utf8") != nullptr;
  }
  return false;
}

TerminalSize SizeOf(int fd) {
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {.columns = size.ws_col, .rows = size.ws_row};
}

Result<void> Print(std::string_view text) {
  if (const int error = WriteAll(STDOUT_FILENO, text); error != 0) {
    return FailSystem(error, "write to standard output");
  }
  return {};
}

void PrintError(std::string_view text) { (void)WriteAll(STDERR_FILENO, text); }

void CatchInterrupt() {
  struct sigaction action{};
  action.sa_handler = OnInterrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
}

bool Interrupted() { return interrupted != 0; }

bool WaitOrInterrupt(int64_t wait_ms) {
  const Deadline deadline = Deadline::AfterMs(wait_ms);
  // poll() is never restarted after a signal, so the signal ends this loop.
  while (!Interrupted() && !deadline.Passed()) poll(nullptr, 0, deadline.RemainingMs());
  return !Interrupted();
}

std::string ErrorText(const Status& status) {
  std::string text = Concat("gpushmctl: ", Printable(status.what()), "\n");
  if (!status.remedy().empty()) text += Concat("remedy: ", Printable(status.remedy()), "\n");
  return text;
}

}  // namespace gpushm::ctl
