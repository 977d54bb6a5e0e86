#include "runtime/ctl/probe.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <span>
#include <string_view>
#include <vector>

#include "contract/protocol/channel.h"
#include "platform/base/clock.h"

namespace gpushm::ctl {
namespace {

// A killed child that is still there after this hangs in the driver, and is left to the kernel.
constexpr int64_t kReapMs = 1000;
constexpr int kReapStepMs = 5;

// A message is 'K' and the text, or 'F', the code as one byte, `what`, NUL and `remedy`.
std::string Encode(const Result<ProbeOutput>& result) {
  if (result) return "K" + result->text.substr(0, kProbeTextBytes);
  const Status& status = result.error();
  std::string text = "F";
  text += static_cast<char>(status.code());
  text += status.what().substr(0, kProbeTextBytes / 2);
  text += '\0';
  text += status.remedy().substr(0, kProbeTextBytes / 4);
  return text;
}

Result<ProbeOutput> Decode(protocol::Message message) {
  const std::string_view text(reinterpret_cast<const char*>(message.bytes.data()),
                              message.size_bytes);
  if (text.starts_with('K')) {
    ProbeOutput output{.text = std::string(text.substr(1))};
    if (!message.descriptors.empty()) output.descriptor = std::move(message.descriptors.front());
    return output;
  }
  const size_t end = text.find('\0', 2);
  if (!text.starts_with('F') || end == std::string_view::npos) {
    return Fail(Code::kInternal, "a probe sent an invalid answer");
  }
  return Fail(static_cast<Code>(text[1]), std::string(text.substr(2, end - 2)),
              std::string(text.substr(end + 1)));
}

void SendResult(int socket, const Result<ProbeOutput>& result) {
  const std::string text = Encode(result);
  std::vector<int> descriptors;
  if (result && result->descriptor.valid()) descriptors.push_back(result->descriptor.get());
  // A failure looks to the parent like a child that ended, which it is about to.
  (void)protocol::Send(socket, std::as_bytes(std::span(text)), descriptors,
                       Deadline::AfterMs(kReapMs));
}

// Describes in words how the child ended; empty: it has not ended yet.
std::string Reap(pid_t child) {
  const Deadline deadline = Deadline::AfterMs(kReapMs);
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (deadline.Passed()) return "";
    poll(nullptr, 0, kReapStepMs);
  }
  return WIFSIGNALED(status)
             ? Concat("signal ", WTERMSIG(status), ", ", strsignal(WTERMSIG(status)))
             : Concat("exit status ", WEXITSTATUS(status));
}

}  // namespace

Result<ProbeOutput> Probe(const std::function<Result<ProbeOutput>()>& body, int64_t wait_ms) {
  std::array<int, 2> sockets{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets.data()) != 0) {
    return FailSystem(errno, "socketpair");
  }
  UniqueFd ours(sockets[0]);
  UniqueFd theirs(sockets[1]);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return FailSystem(errno, "fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // The parent ended before prctl.
    ours.Reset();
    try {
      SendResult(theirs.get(), body());
    } catch (const std::exception& error) {
      SendResult(theirs.get(), Fail(Code::kInternal, Concat("internal error: ", error.what())));
    }
    _exit(0);
  }
  theirs.Reset();
  protocol::Message message;
  const auto received = protocol::Receive(ours.get(), &message, Deadline::AfterMs(wait_ms));
  const bool ended = !received && received.error().code() == Code::kUnavailable;
  if (!ended) kill(child, SIGKILL);
  const std::string how = Reap(child);
  if (ended) {
    return Fail(Code::kDriver, Concat("the process that tried it ended with ", how),
                "this is a fault of the driver: check dmesg, and reset the GPU");
  }
  if (!received && received.error().code() == Code::kTimeout) {
    return Fail(Code::kTimeout,
                Concat("no answer within ", wait_ms, " ms",
                       how.empty() ? ", and the process that tried it cannot be killed" : ""),
                "the GPU or its driver hangs: "
                "check dmesg for XIDs, and reset the GPU or drain the node");
  }
  if (!received) return std::unexpected(received.error());
  return Decode(std::move(message));
}

}  // namespace gpushm::ctl
