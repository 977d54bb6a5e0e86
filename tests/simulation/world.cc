#include "tests/simulation/world.h"

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "contract/protocol/channel.h"
#include "platform/base/status.h"

namespace gpushm::simulation {
namespace {

constexpr size_t kStackBytes = 512 << 10;
constexpr size_t kTraceLines = 4000;
// A turn takes microseconds. One that takes this long waits for something outside of the world.
constexpr int64_t kHangSeconds = 20;

World* current = nullptr;

// False: the turn did not come within a second.
bool Await(std::atomic<uint32_t>& turn) {
  const timespec second{.tv_sec = 1, .tv_nsec = 0};
  while (turn.load(std::memory_order_acquire) == 0) {
    if (syscall(SYS_futex, &turn, FUTEX_WAIT, 0, &second, nullptr, 0) != 0 && errno == ETIMEDOUT) {
      return false;
    }
  }
  turn.store(0, std::memory_order_relaxed);
  return true;
}

void Give(std::atomic<uint32_t>& turn) {
  turn.store(1, std::memory_order_release);
  syscall(SYS_futex, &turn, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

}  // namespace

World* World::Current() { return current; }

World::World(uint64_t seed, bool keep_trace) : random_(seed), keep_trace_(keep_trace) {
  current = this;
  // Two callbacks in turns at each message, at some, or never.
  constexpr std::array<uint64_t, 4> kOneIn{0, 2, 5, 20};
  interleave_one_in_ = kOneIn[Pick(kOneIn.size())];
  is_narrow_ = Chance(3);
}

World::~World() {
  for (const auto& process : processes_) Kill(process.get());
  for (const auto& process : processes_) munmap(process->stack, kStackBytes);
  current = nullptr;
}

// ---- processes

int World::Enter(void* of) {
  auto& process = *static_cast<Process*>(of);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  while (!Await(process.turn)) {
  }
  // Of what it inherited it keeps the standard descriptors only.
  process.waits = epoll_create1(EPOLL_CLOEXEC);
  const std::byte byte{};
  const auto sent = protocol::TrySend(current->channel_, {&byte, 1}, {&process.waits, 1});
  GPUSHM_ASSERT(sent.has_value() && *sent);
  dup2(process.waits, 3);
  process.waits = 3;
  syscall(SYS_close_range, 4, ~0U, 0);
  current->Yield();
  process.main();
  process.ended = true;
  Give(current->turn_);  // The world waits for the end, see Reap.
  return 0;
}

Process* World::Start(std::string name, Task main) {
  processes_.push_back(std::make_unique<Process>());
  Process& process = *processes_.back();
  process.name = std::move(name);
  process.number = static_cast<int>(processes_.size());
  process.main = std::move(main);
  process.weight = 1 + (Chance(4) ? Pick(12) : 0);
  std::array<int, 2> channel{};
  GPUSHM_ASSERT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channel.data()) == 0);
  process.stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  GPUSHM_ASSERT(process.stack != MAP_FAILED);
  // It shares even the thread-local variables, because only one runs at a time.
  process.pid =
      clone(&Enter, static_cast<char*>(process.stack) + kStackBytes, CLONE_VM | SIGCHLD, &process);
  GPUSHM_ASSERT(process.pid > 0);
  channel_ = channel[1];
  const uint64_t interleave_one_in = std::exchange(interleave_one_in_, 0);
  const uint64_t doom_one_in = std::exchange(doom_one_in_, 0);
  Switch(process);  // Until it has sent its descriptor.
  interleave_one_in_ = interleave_one_in;
  doom_one_in_ = doom_one_in;
  protocol::Message message;
  const auto received = protocol::TryReceive(channel[0], &message);
  GPUSHM_ASSERT(received.has_value() && *received && message.descriptors.size() == 1);
  process.waits_of_world = message.descriptors[0].Release();
  close(channel[0]);
  close(channel[1]);
  Note(Concat(process.name, " starts"));
  return &process;
}

void World::Reap(Process& process) {
  int status = 0;
  while (waitpid(process.pid, &status, 0) < 0 && errno == EINTR) {
  }
  process.pid = -1;
  process.ended = true;
  process.queues.clear();
  process.inbox.clear();
  close(process.waits_of_world);
}

void World::Kill(Process* process) {
  if (process->pid < 0) return;
  Note(Concat(process->name, " is killed"));
  kill(process->pid, SIGKILL);
  Reap(*process);
}

void World::Thaw() {
  for (const auto& process : processes_) process->frozen_until_ns = 0;
}

void World::Post(Process* process, Task task) { process->inbox.push_back(std::move(task)); }

void World::Switch(Process& process) {
  ++turns_;
  running_ = &process;
  process.at_rest = false;
  Give(process.turn);
  for (int64_t waited = 0; !Await(turn_); ++waited) {
    int status = 0;
    const bool gone = waitpid(process.pid, &status, WNOHANG) == process.pid;
    if (!gone && waited < kHangSeconds) continue;
    Fail(gone ? Concat(process.name, " ended with wait status ", status)
              : Concat(process.name, " waits for something outside of the simulation"));
    if (gone) {
      process.pid = -1;
      process.ended = true;
    }
    break;
  }
  running_ = nullptr;
  if (process.ended && process.pid > 0) {
    Note(Concat(process.name, " ends"));
    Reap(process);
  }
}

void World::Touch() {
  for (const auto& process : processes_) process->touched = true;
}

std::vector<Process*> World::Ready() {
  std::vector<Process*> ready;
  std::vector<pollfd> waits;
  std::vector<Process*> waiting;
  for (const auto& process : processes_) {
    if (process->ended || process->frozen_until_ns > now_ns_) continue;
    if (!process->idle || process->touched || process->wake_ns <= now_ns_ || HasTask(*process)) {
      ready.push_back(process.get());
    } else {
      waits.push_back({.fd = process->waits_of_world, .events = POLLIN, .revents = 0});
      waiting.push_back(process.get());
    }
  }
  poll(waits.data(), waits.size(), 0);
  for (size_t i = 0; i < waits.size(); ++i) {
    if (waits[i].revents != 0) ready.push_back(waiting[i]);
  }
  return ready;
}

bool World::Step(int64_t until_ns) {
  const std::vector<Process*> ready = Ready();
  if (ready.empty()) {
    int64_t next_ns = kForever;
    for (const auto& process : processes_) {
      if (process->ended) continue;
      const bool frozen = process->frozen_until_ns > now_ns_;
      next_ns = std::min(next_ns, frozen ? process->frozen_until_ns : process->wake_ns);
    }
    if (next_ns > until_ns) {
      if (until_ns != kForever) now_ns_ = std::max(now_ns_, until_ns);
      return false;
    }
    if (next_ns == kForever) return false;
    now_ns_ = std::max(now_ns_, next_ns);
    return true;
  }
  uint64_t weights = 0;
  for (const Process* process : ready) weights += process->weight;
  uint64_t at = Pick(weights);
  for (Process* const process : ready) {
    if (at < process->weight) {
      now_ns_ += static_cast<int64_t>(Pick(50'000));
      Switch(*process);
      break;
    }
    at -= process->weight;
  }
  return true;
}

std::string World::Describe() const {
  std::string text;
  for (const auto& process : processes_) {
    if (process->ended) continue;
    text +=
        Concat(text.empty() ? "" : "; ", process->name, process->idle ? " waits" : " may go on");
    if (process->idle && process->wake_ns != kForever) text += Concat(" until ", process->wake_ns);
    if (process->frozen_until_ns > now_ns_) text += ", stopped";
  }
  return text;
}

// ---- process

void World::GiveTurn(bool idle, int64_t wake_ns) {
  Process& self = *running_;
  const int error = errno;
  self.idle = idle;
  self.touched = false;
  self.wake_ns = wake_ns;
  Give(turn_);
  while (!Await(self.turn)) {
  }
  errno = error;
}

void World::Interleave() {
  if (Chance(doom_one_in_)) {
    running_->doomed = true;
    return Yield();
  }
  if (Chance(interleave_one_in_)) Yield();
}

void World::Sleep(int64_t for_ns) {
  const int64_t wake_ns = now_ns_ + for_ns;
  Yield();
  while (now_ns_ < wake_ns) Idle(wake_ns);
}

void World::Expect(int descriptor, uint32_t events) {
  epoll_event event{.events = events, .data = {}};
  const int done =
      epoll_ctl(running_->waits, events == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_ADD, descriptor, &event);
  GPUSHM_ASSERT(done == 0);
}

void World::Narrow(int socket) const {
  const int least = 1;  // The kernel makes it about five messages.
  if (is_narrow_) setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &least, sizeof least);
}

bool World::HasTask(const Process& process) {
  return !process.inbox.empty() || std::ranges::any_of(process.queues, [](const auto& weak) {
    const auto queue = weak.lock();
    return queue && !queue->tasks.empty();
  });
}

void World::RunTask() {
  std::vector<std::deque<Task>*> from;
  std::vector<size_t> at_once;
  std::vector<std::shared_ptr<TaskQueue>> held;
  if (!running_->inbox.empty()) {
    from.push_back(&running_->inbox);
    at_once.push_back(1);
  }
  for (const auto& weak : running_->queues) {
    const auto queue = weak.lock();
    if (!queue || queue->tasks.empty()) continue;
    held.push_back(queue);
    from.push_back(&queue->tasks);
    at_once.push_back(queue->at_once);
  }
  const size_t chosen = Pick(from.size());
  std::deque<Task>& tasks = *from[chosen];
  const auto next =
      tasks.begin() + static_cast<std::ptrdiff_t>(Pick(std::min(at_once[chosen], tasks.size())));
  const Task task = std::move(*next);
  tasks.erase(next);
  task();
}

// ---- what happened

void World::Note(std::string_view what) {
  for (const char c : what) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  if (!keep_trace_) return;
  trace_.push_back(Concat(now_ns_ / 1000, " us ", running_ ? running_->name : "world", ": ", what));
  if (trace_.size() > kTraceLines) trace_.pop_front();
}

void World::Log(std::string_view event, std::string_view text) {
  Note(text);
  if (watcher_ != nullptr && running_ != nullptr) watcher_->OnLog(*running_, event);
}

void World::Fail(std::string why) {
  if (!failure_.empty()) return;
  Note(Concat("FAILS: ", why));
  failure_ = std::move(why);
}

}  // namespace gpushm::simulation
