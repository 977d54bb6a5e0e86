// A world of processes under one seed and a virtual clock (docs/design/simulation.md).
//
// A process of the world is a task of the kernel with its own descriptors, PID and death, but in
// the memory of this program (clone with CLONE_VM). So its sockets, locks and pidfds are real,
// SIGKILL runs no destructor and closes what the kernel closes, and a check can read everybody's
// objects at any time.
//
// One task runs at a time. The others wait for their turn inside one of the system calls that
// system_calls.cc replaces: there, and only there, the world chooses who goes on. Nothing else of
// the kernel's decides anything, so a seed repeats a run exactly.
//
// Threads: the world's. Functions marked "process" are for the process that runs.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm::simulation {

inline constexpr int64_t kForever = std::numeric_limits<int64_t>::max();
inline constexpr int64_t kMs = 1'000'000;  // In nanoseconds, as all times of the world.

using Task = std::function<void()>;

// The tasks of one Worker of a process (stand_ins.cc).
struct TaskQueue {
  std::deque<Task> tasks;
  size_t at_once = 1;  // Any of so many may be next.
};

struct Process {
  std::string name;
  int number = 0;
  Task main;
  pid_t pid = -1;
  bool ended = false;
  // Its workers run their tasks immediately, as long as it blocks for the results (a start).
  bool blocks_for_workers = false;
  bool at_rest = false;  // Waits in its event loop, not in the middle of a callback.
  bool doomed = false;   // To be killed where it is, before or after a message.
  std::vector<std::weak_ptr<TaskQueue>> queues;
  std::deque<Task> inbox;  // What the world wants done in this process, between two callbacks.

  // ---- the world's
  std::atomic<uint32_t> turn{0};  // A futex.
  void* stack = nullptr;
  // An epoll instance with whatever the process waits for: its own descriptor, and the world's.
  int waits = -1;
  int waits_of_world = -1;
  bool idle = false;     // It waits until that, until wake_ns, or for a task.
  bool touched = false;  // Something else that it may look at has changed.
  int64_t wake_ns = kForever;
  int64_t frozen_until_ns = 0;
  uint64_t weight = 1;  // How often it gets a turn.
};

class World {
 public:
  struct Watcher {
    virtual ~Watcher() = default;
    virtual void OnLog(Process& process, std::string_view event) = 0;
  };

  // The world of this program; null: none, and every system call is the kernel's.
  static World* Current();

  World(uint64_t seed, bool keep_trace);
  ~World();  // Kills everybody.
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  void Watch(Watcher* watcher) { watcher_ = watcher; }

  // ---- chance
  uint64_t Pick(uint64_t below) { return below == 0 ? 0 : random_() % below; }
  bool Chance(uint64_t one_in) { return one_in != 0 && Pick(one_in) == 0; }

  // One of so many messages is the last of its process, which is then doomed; 0: none.
  void SetDoom(uint64_t one_in) { doom_one_in_ = one_in; }

  // ---- time
  int64_t now_ns() const { return now_ns_; }
  int64_t unix_ns() const { return now_ns_ + unix_offset_ns_; }
  void SetClock(int64_t unix_ns) { unix_offset_ns_ = unix_ns - now_ns_; }

  // ---- processes; not while one runs
  Process* Start(std::string name, Task main);
  void Kill(Process* process);  // Returns once the kernel has closed all that it had.
  void Freeze(Process* process, int64_t for_ns) { process->frozen_until_ns = now_ns_ + for_ns; }
  void Thaw();
  void Post(Process* process, Task task);
  // Something that processes look at has changed.
  void Touch();
  // Gives somebody a turn, or else lets time pass until somebody has something to do, but not
  // beyond `until_ns`. False: nobody has before that, or ever.
  bool Step(int64_t until_ns);

  // ---- process
  Process* running() const { return running_; }
  // Others may run, or this process may be killed, before it goes on.
  void Yield() { GiveTurn(/*idle=*/false, kForever); }
  // The same in the middle of a callback, with the seed's probability.
  void Interleave();
  // Nothing to do until `wake_ns`, a task, Touch(), or a descriptor that Expect() named is ready.
  void Idle(int64_t wake_ns) { GiveTurn(/*idle=*/true, wake_ns); }
  void Expect(int descriptor, uint32_t events);  // EPOLLIN ...; 0: no more.
  void Sleep(int64_t for_ns);
  // Gives a socket room for a few messages, if this is a world of such.
  void Narrow(int socket) const;
  // Runs one task of a worker or of the inbox; false: there is none.
  bool HasTask() const { return HasTask(*running_); }
  void RunTask();

  // For a failure: who waits for what.
  std::string Describe() const;

  // ---- what happened
  void Note(std::string_view what);  // For the trace, and for its hash.
  void Log(std::string_view event, std::string_view text);
  // The first failure ends the run.
  void Fail(std::string why);
  bool failed() const { return !failure_.empty(); }
  const std::string& failure() const { return failure_; }
  bool keeps_trace() const { return keep_trace_; }
  const std::deque<std::string>& trace() const { return trace_; }
  uint64_t hash() const { return hash_; }
  uint64_t turns() const { return turns_; }

 private:
  static int Enter(void* process);
  void GiveTurn(bool idle, int64_t wake_ns);
  void Switch(Process& process);
  void Reap(Process& process);
  static bool HasTask(const Process& process);
  // Those that may go on.
  std::vector<Process*> Ready();

  std::mt19937_64 random_;
  const bool keep_trace_;
  Watcher* watcher_ = nullptr;
  int64_t now_ns_ = 1'000'000'000;
  int64_t unix_offset_ns_ = 1'700'000'000'000'000'000;
  std::vector<std::unique_ptr<Process>> processes_;
  Process* running_ = nullptr;
  int channel_ = -1;               // Of the process that starts.
  std::atomic<uint32_t> turn_{0};  // A futex: the world's.
  uint64_t turns_ = 0;
  uint64_t interleave_one_in_ = 0;
  bool is_narrow_ = false;
  uint64_t doom_one_in_ = 0;
  std::string failure_;
  std::deque<std::string> trace_;
  uint64_t hash_ = 0xcbf29ce484222325;
};

}  // namespace gpushm::simulation
