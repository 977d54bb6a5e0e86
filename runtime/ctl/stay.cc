#include "runtime/ctl/stay.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <optional>
#include <utility>

#include "platform/base/clock.h"
#include "platform/base/unique_fd.h"
#include "runtime/ctl/terminal.h"

namespace gpushm::ctl {
namespace {

// Between two looks at the registry, and between two attempts if the last one found nothing that
// can be loaded, which costs it no context.
constexpr int kLookMs = 1000;
// Between two attempts after any other failure it doubles up to this.
constexpr int kLongestPauseMs = 16'000;
// A child that has moved no byte for this long is reported. It may be in a system call that nothing
// ends, so nobody waits for it longer than this either.
constexpr int64_t kSilentMs = 10'000;
constexpr int64_t kEndMs = 2'000;
constexpr size_t kReasonBytes = 2048;

constexpr std::string_view kPrefix = "gpushmctl: ";

// The last message of a process, in one line.
std::string OneLine(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  if (const size_t at = text.rfind(Concat("\n", kPrefix)); at != std::string::npos) {
    text.erase(0, at + 1);
  }
  for (size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at)) {
    text.replace(at, 1, "; ");
  }
  return text.starts_with(kPrefix) ? text.substr(kPrefix.size()) : text;
}

class Stay {
 public:
  Stay(const Context& context, std::string name, std::vector<std::string> words)
      : context_(context), name_(std::move(name)), words_(std::move(words)) {}

  Result<ExitCode> Run();

 private:
  // The child's exit code, and what it wrote to standard error.
  struct End {
    int status = 0;
    std::string text = {};
    bool is(ExitCode code) const {
      return WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(code);
    }
  };

  // The buffer as the broker's registry shows it now; nullopt, with the reason said, if that is not
  // known.
  std::optional<gpushm_info> Find();
  Result<End> Load();
  Result<pid_t> Start(int errors) const;
  void Stop(pid_t child, End* end);
  // Waits for a signal, for `fd` (if it is not -1) and at most for that time. Notes a request to
  // end.
  void Pause(int fd, int wait_ms);
  void Say(const std::string& what);

  const Context& context_;
  const std::string name_;
  const std::vector<std::string> words_;
  UniqueFd signals_;
  std::optional<Connection> connection_;
  std::string said_;
  bool ends_ = false;
};

void Stay::Say(const std::string& what) {
  if (what == std::exchange(said_, what)) return;
  PrintError(Concat("gpushmctl: \"", name_, "\" ", what, "\n"));
}

void Stay::Pause(int fd, int wait_ms) {
  std::array<pollfd, 2> wanted{{{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                                {.fd = fd, .events = POLLIN, .revents = 0}}};
  if (poll(wanted.data(), wanted.size(), wait_ms) <= 0 || wanted[0].revents == 0) return;
  signalfd_siginfo info{};
  while (read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo != SIGCHLD) ends_ = true;
  }
}

std::optional<gpushm_info> Stay::Find() {
  if (!connection_) {
    Result<Connection> opened = context_.Connect();
    if (!opened) {
      Say(Concat("waits for the broker: ", OneLine(ErrorText(opened.error()))));
      return std::nullopt;
    }
    connection_ = std::move(*opened);
  }
  // Unlike a look at one name, this notices a new broker.
  const auto infos = connection_->List();
  if (!infos) {
    Say(Concat("waits for the broker: ", OneLine(ErrorText(infos.error()))));
    connection_.reset();
    return std::nullopt;
  }
  const auto found = std::ranges::find(
      *infos, name_, [](const auto& info) { return std::string_view(info.name); });
  if (found != infos->end()) return *found;
  Say("waits: no buffer of this name exists");
  return std::nullopt;
}

Result<pid_t> Stay::Start(int errors) const {
  std::vector<char*> arguments;
  for (const std::string& word : words_) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) {
    return FailSystem(errno, "fork", "check the container's memory and pids limits");
  }
  if (child != 0) return child;
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  dup2(errors, STDERR_FILENO);
  execv("/proc/self/exe", arguments.data());
  _exit(static_cast<int>(ExitCode::kFailure));
}

// The kernel ends a child only when its system call lets it.
void Stay::Stop(pid_t child, End* end) {
  kill(child, SIGTERM);
  const Deadline deadline = Deadline::AfterMs(kEndMs);
  while (waitpid(child, &end->status, WNOHANG) == 0 && !deadline.Passed()) {
    poll(nullptr, 0, 10);
  }
}

Result<Stay::End> Stay::Load() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    return FailSystem(errno, "pipe", "check the container's memory limit");
  }
  const UniqueFd errors(ends[0]);
  UniqueFd theirs(ends[1]);
  const Result<pid_t> child = Start(theirs.get());
  theirs.Reset();
  if (!child) return std::unexpected(child.error());
  End end;
  uint64_t loaded_bytes = 0;
  int64_t moved_ns = MonotonicNs();
  bool open = true;
  const auto read_errors = [&] {
    std::array<char, 512> some{};
    ssize_t length = 0;
    while ((length = read(errors.get(), some.data(), some.size())) > 0) {
      end.text.append(some.data(), static_cast<size_t>(length));
      if (end.text.size() > kReasonBytes) end.text.resize(kReasonBytes);
    }
    open = open && length != 0;
  };
  while (waitpid(*child, &end.status, WNOHANG) == 0) {
    Pause(open ? errors.get() : -1, kLookMs);
    if (ends_) {
      Stop(*child, &end);
      return end;
    }
    read_errors();
    const std::optional<gpushm_info> now = Find();
    if (now && now->loaded_bytes != std::exchange(loaded_bytes, now->loaded_bytes)) {
      moved_ns = MonotonicNs();
    }
    if (MonotonicNs() - moved_ns > kSilentMs * 1'000'000) {
      const std::string why = Concat("no byte has moved for ", kSilentMs / 1000,
                                     " s; its volume or the GPU's driver does not answer");
      Say(Concat("waits: ", why));
      // The child cannot.
      if (connection_) connection_->StateReason(name_, {Code::kTimeout, why});
    }
  }
  read_errors();
  return end;
}

Result<ExitCode> Stay::Run() {
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int signal : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&wanted, signal);
  sigprocmask(SIG_BLOCK, &wanted, nullptr);
  signals_.Reset(signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return FailSystem(errno, "signalfd");
  int pause_ms = kLookMs;
  while (!ends_) {
    const std::optional<gpushm_info> info = Find();
    const bool lacks =
        info && (info->state == GPUSHM_BUFFER_LOADING || info->state == GPUSHM_BUFFER_FAILED);
    if (!lacks) {
      if (info) Say(Concat("has its content, ", info->content_bytes, " bytes"));
      pause_ms = kLookMs;
      Pause(-1, kLookMs);
      continue;
    }
    const Result<End> end = Load();
    if (ends_) break;
    if (end && end->is(ExitCode::kOk)) continue;
    const bool is_cheap = end && (end->is(ExitCode::kNotFound) || end->is(ExitCode::kUsage) ||
                                  end->is(ExitCode::kBusy) || end->is(ExitCode::kNoBroker));
    pause_ms = is_cheap ? kLookMs : std::min(2 * pause_ms, kLongestPauseMs);
    const std::string why = !end ? OneLine(ErrorText(end.error()))
                            : WIFSIGNALED(end->status)
                                ? Concat("signal ", WTERMSIG(end->status), " ended the load")
                                : OneLine(end->text);
    Say(Concat("is not loaded: ", why, "; gpushmctl tries again ",
               is_cheap ? "every second" : Concat("within ", kLongestPauseMs / 1000, " s")));
    const Deadline again = Deadline::AfterMs(pause_ms);
    while (!ends_ && !again.Passed()) Pause(-1, again.RemainingMs());
  }
  return ExitCode::kOk;
}

}  // namespace

Result<ExitCode> StayLoaded(const Context& context, const std::string& name,
                            std::vector<std::string> words) {
  return Stay(context, name, std::move(words)).Run();
}

Result<std::vector<std::string>> WordsWithoutStay() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) {
    if (word != "--stay") words.push_back(std::move(word));
  }
  if (words.empty()) return FailSystem(errno, "read /proc/self/cmdline", "mount /proc");
  return words;
}

}  // namespace gpushm::ctl
