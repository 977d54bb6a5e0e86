#include "sidecar/broker/child.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "contract/protocol/channel.h"
#include "platform/base/clock.h"
#include "platform/daemon/log.h"
#include "platform/daemon/process.h"
#include "sidecar/broker/spawner.h"

namespace gpushm::broker {
namespace {

constexpr size_t kLineBytes = 4096;
// Time for the spawner to fork and answer, which takes 1 ms once it gets a CPU core.
constexpr int64_t kSpawnMs = 1'000;
constexpr int64_t kReapMs = 250;

Result<std::array<UniqueFd, 2>> SocketPair(int type) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return FailSystem(errno, "socketpair");
  }
  return std::array{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// Ends a child that has no Child object. No descriptor here reports its end, and it may take a
// while.
void EndUnknown(EventLoop* loop, pid_t pid) {
  kill(pid, SIGKILL);
  if (waitpid(pid, nullptr, WNOHANG) != 0) return;
  loop->After(kReapMs, [loop, pid] { EndUnknown(loop, pid); });
}

}  // namespace

struct Child::Process {
  EventLoop* loop = nullptr;
  std::string name;
  pid_t pid = -1;
  UniqueFd pidfd;
  UniqueFd channel;
  std::string line;  // The incomplete line read so far.
  Events events;
  bool killed = false;
  std::shared_ptr<bool> ended = std::make_shared<bool>(false);

  bool ReadSome();
  void OnEnded();
  void Tell(int status);
  void Kill(const std::shared_ptr<Process>& self);
  void LogHang() const;
};

// Returns false if there is nothing left to read for now.
bool Child::Process::ReadSome() {
  if (!channel) return false;
  std::array<char, 4096> bytes{};
  const ssize_t count = recv(channel.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count <= 0) {
    if (count == 0 || errno != EAGAIN) loop->Unwatch(channel.get());
    return false;
  }
  for (const char c : std::string_view(bytes.data(), static_cast<size_t>(count))) {
    if (c == '\n') {
      const std::string whole = std::exchange(line, {});
      const auto on_line = events.on_line;  // A copy, because it may set other events.
      if (on_line) on_line(whole);
    } else if (line.size() < kLineBytes) {
      line += c;
    }
  }
  return true;
}

void Child::Process::OnEnded() {
  while (ReadSome()) {  // The last bytes that it wrote; at most one socket buffer is left.
  }
  loop->Unwatch(pidfd.get());
  if (channel) loop->Unwatch(channel.get());
  int status = 0;
  waitpid(pid, &status, WNOHANG);  // Its pidfd has reported the end.
  pidfd.Reset();
  channel.Reset();
  *ended = true;
  Tell(status);
}

void Child::Process::Tell(int status) {
  const auto on_end = std::exchange(events, {}).on_end;
  if (on_end) on_end(status);
}

void Child::Process::Kill(const std::shared_ptr<Process>& self) {
  if (*ended || std::exchange(killed, true)) return;
  kill(pid, SIGKILL);
  loop->After(Children::kKillMs, [self] {
    if (*self->ended) return;
    self->LogHang();
    self->loop->Unwatch(self->channel.get());
    self->channel.Reset();
    self->Tell(SIGKILL);
  });
}

void Child::Process::LogHang() const {
  const std::vector<HeldThread> threads = HeldThreads(pid);
  const HeldThread held = threads.empty() ? HeldThread{.tid = pid} : threads.front();
  LogWarning("child-hangs", {{"child", name},
                             {"pid", pid},
                             {"thread", held.tid},
                             {"system_call", held.system_call},
                             {"kernel_function", held.kernel_function}});
}

// ---- Child

Child::~Child() {
  process_->events = {};
  process_->Kill(process_);
}

void Child::SetEvents(Events events) { process_->events = std::move(events); }
pid_t Child::pid() const { return process_->pid; }
void Child::Kill() { process_->Kill(process_); }
std::shared_ptr<const bool> Child::ended() const { return process_->ended; }

Result<void> Child::Send(const std::string& line, std::span<const int> descriptors) const {
  const std::string whole = line + '\n';
  const Result<bool> sent = SendDescriptors(process_->channel.get(), whole, descriptors);
  if (!sent) return std::unexpected(sent.error());
  if (*sent) return {};
  return Fail(Code::kBusy, Concat("too many descriptors of this user are in flight"),
              "processes of the same user on this node must receive the descriptors sent to them");
}

// ---- Children

Result<std::unique_ptr<Children>> Children::Create(EventLoop* loop, const std::string& program,
                                                   SpawnerEnded on_spawner_ended) {
  Result<std::array<UniqueFd, 2>> ends = SocketPair(SOCK_SEQPACKET);
  if (!ends) return std::unexpected(ends.error());
  const auto spawner = StartProgram({program, kSpawnerName}, {{(*ends)[1].get(), kChannel}});
  if (!spawner) return FailSystem(spawner.error(), Concat("start of ", program));
  std::unique_ptr<Children> children(
      new Children(loop, std::move((*ends)[0]), *spawner, std::move(on_spawner_ended)));
  const auto watched = loop->Watch(children->control_.get(), EPOLLIN,
                                   [self = children.get()](uint32_t) { self->OnControl(); });
  if (!watched) return std::unexpected(watched.error());
  return children;
}

Children::~Children() { loop_->Unwatch(control_.get()); }

// Handles an answer that came too late for Spawn, or the spawner's end.
void Children::OnControl() {
  const Result<pid_t> late = TakeAnswer(/*wait_ms=*/0, "child");
  if (late) return EndUnknown(loop_, *late);
  if (late.error().code() != Code::kUnavailable) return;
  loop_->Unwatch(control_.get());
  int status = 0;
  waitpid(spawner_, &status, 0);  // It has closed its end, so it is about to end.
  on_spawner_ended_(Status(Code::kPeerDied, Concat("the broker's spawner ", HowItEnded(status)),
                           "check the sidecar's memory limit and the node's kernel log"));
}

// Fails with kTimeout if there is no answer, and with kUnavailable if the spawner has ended.
Result<pid_t> Children::TakeAnswer(int64_t wait_ms, const std::string& name) {
  protocol::Message answer;
  if (auto r = protocol::Receive(control_.get(), &answer, Deadline::AfterMs(wait_ms)); !r) {
    return std::unexpected(r.error());
  }
  is_answer_due_ = false;
  SpawnAnswer said{};
  GPUSHM_ASSERT(answer.size_bytes == sizeof said);
  std::memcpy(&said, answer.bytes.data(), sizeof said);
  if (said.error != 0) return FailSystem(said.error, Concat("start of the ", name));
  return said.pid;
}

Result<pid_t> Children::Spawn(const std::vector<std::string>& arguments, int channel) {
  const auto late = [] {
    return Fail(Code::kBusy, "the broker's spawner does not answer",
                "try again, and check that the sidecar gets CPU time");
  };
  if (is_answer_due_) return late();
  std::string words;
  for (const std::string& argument : arguments) words += argument + '\0';
  const std::array descriptors = {channel};
  const Result<bool> sent = SendDescriptors(control_.get(), words, descriptors);
  if (!sent) return std::unexpected(sent.error());
  if (!*sent) {
    return Fail(Code::kBusy, "too many descriptors of this user are in flight", "try again");
  }
  Result<pid_t> pid = TakeAnswer(kSpawnMs, arguments.front());
  is_answer_due_ = !pid && pid.error().code() == Code::kTimeout;
  if (is_answer_due_) return late();
  return pid;
}

Result<std::unique_ptr<Child>> Children::Start(const std::vector<std::string>& arguments,
                                               Child::Events events) {
  Result<std::array<UniqueFd, 2>> ends = SocketPair(SOCK_STREAM);
  if (!ends) return std::unexpected(ends.error());
  const Result<pid_t> pid = Spawn(arguments, (*ends)[1].get());
  if (!pid) return std::unexpected(pid.error());
  const auto process = std::make_shared<Child::Process>();
  process->loop = loop_;
  process->name = arguments.front();
  process->pid = *pid;
  process->channel = std::move((*ends)[0]);
  // The child belongs to the broker and is not reaped yet, so its pid cannot belong to another
  // process.
  process->pidfd.Reset(static_cast<int>(syscall(SYS_pidfd_open, *pid, 0)));
  const Result<void> ending =
      process->pidfd
          ? loop_->Watch(process->pidfd.get(), EPOLLIN, [process](uint32_t) { process->OnEnded(); })
          : FailSystem(errno, Concat("pidfd_open of the ", process->name));
  if (!ending) {
    EndUnknown(loop_, *pid);
    return std::unexpected(ending.error());
  }
  std::unique_ptr<Child> child(new Child(process));
  std::erase_if(processes_, [](const auto& other) { return other.expired(); });
  processes_.push_back(process);
  const auto reading =
      loop_->Watch(process->channel.get(), EPOLLIN, [process](uint32_t) { process->ReadSome(); });
  if (!reading) return std::unexpected(reading.error());
  process->events = std::move(events);
  return child;
}

void Children::EndAll(int64_t wait_ms) {
  std::vector<std::shared_ptr<Child::Process>> left;
  for (const auto& weak : processes_) {
    const auto process = weak.lock();
    if (!process || *process->ended) continue;
    process->events = {};
    kill(process->pid, SIGKILL);
    left.push_back(process);
  }
  const Deadline deadline = Deadline::AfterMs(wait_ms);
  for (const auto& process : left) {
    pollfd poller{.fd = process->pidfd.get(), .events = POLLIN, .revents = 0};
    if (poll(&poller, 1, deadline.RemainingMs()) > 0) {
      process->OnEnded();
    } else {
      process->LogHang();
    }
  }
}

}  // namespace gpushm::broker
