// Children of the broker: this program again, short-lived, for what needs a context or may hang in
// the kernel.
//
// A child begins with its standard descriptors and number 3, a stream socket to the broker;
// whatever else it needs is sent to it there (spawner.h). It is started by a process of its own,
// the spawner, which has no descriptor of a client: exec closes what it inherits, closing a file of
// a hung file system does not return, and whoever started the child waits for its exec.
//
// SIGKILL does not end a process that the kernel holds in a system call, as on a hung FUSE file
// system. Nobody here waits for one: after kKillMs it counts as ended, and the log says where it
// hangs.
//
// Nobody waits long for the spawner either: where it has not answered in time, as in a container
// that was frozen, that start is refused with BUSY and so are others until it has; the child that
// it started late is ended. Without a spawner nothing can be started: its end is an event.
//
// Threads: the loop's.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "platform/daemon/event_loop.h"

namespace gpushm::broker {

class Child {
 public:
  struct Events {
    std::function<void(const std::string& line)> on_line;  // Without its end.
    // As waitpid() tells it, after the last line. Of one that hangs: killed by SIGKILL.
    std::function<void(int status)> on_end;
  };

  // Kills it, if it has not ended. Nobody is told then.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void SetEvents(Events events);
  pid_t pid() const;
  // on_end follows, within kKillMs.
  void Kill();
  // A line and descriptors, which stay the caller's. kSystem, e.g. that it has ended.
  Result<void> Send(const std::string& line, std::span<const int> descriptors) const;

  // Turns true when the process has ended, also after this object has.
  std::shared_ptr<const bool> ended() const;

 private:
  friend class Children;
  struct Process;
  explicit Child(std::shared_ptr<Process> process) : process_(std::move(process)) {}

  std::shared_ptr<Process> process_;
};

// Starts them.
class Children {
 public:
  static constexpr int64_t kKillMs = 1'000;

  using SpawnerEnded = std::function<void(const Status& why)>;

  // Starts the spawner, `program` again. Before anything of a client is open.
  static Result<std::unique_ptr<Children>> Create(EventLoop* loop, const std::string& program,
                                                  SpawnerEnded on_spawner_ended);
  ~Children();
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  // `arguments`: its name (loader, releaser) first. kBusy, and kSystem, e.g. for want of
  // descriptors: both may pass.
  Result<std::unique_ptr<Child>> Start(const std::vector<std::string>& arguments,
                                       Child::Events events);

  // For the end of the broker: kills all that are left and waits `wait_ms` for them at most. The
  // log names those that hang.
  void EndAll(int64_t wait_ms);

 private:
  Children(EventLoop* loop, UniqueFd control, pid_t spawner, SpawnerEnded on_spawner_ended)
      : loop_(loop),
        control_(std::move(control)),
        spawner_(spawner),
        on_spawner_ended_(std::move(on_spawner_ended)) {}
  Result<pid_t> Spawn(const std::vector<std::string>& arguments, int channel);
  Result<pid_t> TakeAnswer(int64_t wait_ms, const std::string& name);
  void OnControl();

  EventLoop* loop_;
  UniqueFd control_;  // To the spawner, which ends with it.
  pid_t spawner_;
  const SpawnerEnded on_spawner_ended_;
  bool is_answer_due_ = false;  // To a start that was given up.
  std::list<std::weak_ptr<Child::Process>> processes_;
};

}  // namespace gpushm::broker
