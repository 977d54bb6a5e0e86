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
#include <vector>

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

Result<ProbeOutput> Decode(std::string_view text, UniqueFd descriptor) {
  if (text.starts_with('K')) {
    return ProbeOutput{std::string(text.substr(1)), std::move(descriptor)};
  }
  const size_t end = text.find('\0', 2);
  if (!text.starts_with('F') || end == std::string_view::npos) {
    return Fail(Code::kInternal, "a probe sent an invalid answer");
  }
  return Fail(static_cast<Code>(text[1]), std::string(text.substr(2, end - 2)),
              std::string(text.substr(end + 1)));
}

void SendResult(int socket, const Result<ProbeOutput>& result) {
  std::string text = Encode(result);
  iovec data{text.data(), text.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (result && result->descriptor.valid()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = result->descriptor.get();
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  sendmsg(socket, &message, MSG_NOSIGNAL);
}

// kTimeout: nothing came in time. kUnavailable: the child ended first.
Result<ProbeOutput> ReceiveResult(int socket, const Deadline& deadline) {
  pollfd poller{.fd = socket, .events = POLLIN, .revents = 0};
  while (poll(&poller, 1, deadline.RemainingMs()) <= 0) {
    if (deadline.Passed()) return Fail(Code::kTimeout, "no answer");
  }
  std::vector<char> bytes(kProbeTextBytes + 16);
  iovec data{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t length = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (length <= 0) return Fail(Code::kUnavailable, "ended");
  UniqueFd descriptor;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    int fd = -1;
    memcpy(&fd, CMSG_DATA(header), sizeof fd);
    descriptor.Reset(fd);
  }
  return Decode({bytes.data(), static_cast<size_t>(length)}, std::move(descriptor));
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
  Result<ProbeOutput> result = ReceiveResult(ours.get(), Deadline::AfterMs(wait_ms));
  const bool ended = !result && result.error().code() == Code::kUnavailable;
  if (!ended) kill(child, SIGKILL);
  const std::string how = Reap(child);
  if (ended) {
    return Fail(Code::kDriver, Concat("the process that tried it ended with ", how),
                "this is a fault of the driver: check dmesg, and reset the GPU");
  }
  if (!result && result.error().code() == Code::kTimeout && result.error().what() == "no answer") {
    return Fail(Code::kTimeout,
                Concat("no answer within ", wait_ms, " ms",
                       how.empty() ? ", and the process that tried it cannot be killed" : ""),
                "the GPU or its driver hangs: "
                "check dmesg for XIDs, and reset the GPU or drain the node");
  }
  return result;
}

}  // namespace gpushm::ctl
