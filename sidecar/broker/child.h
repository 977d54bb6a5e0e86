// Children of the broker: short-lived processes of the same program, for work that needs a context
// or may hang in the kernel.
//
// A child starts with its standard descriptors and descriptor 3, a stream socket to the broker.
// Whatever else it needs is sent over that socket (spawner.h). A separate process, the spawner,
// starts it. The reason: exec closes inherited descriptors, closing a file of a hung file system
// does not return, and whoever starts the child waits for its exec. The spawner has no descriptor
// of a client.
//
// SIGKILL does not end a process that the kernel holds in a system call, as on a hung FUSE file
// system. Nobody here waits for such a process: after kKillMs it counts as ended, and the log says
// where it hangs.
//
// Nobody waits long for the spawner either. If it does not answer in time, as in a container that
// was frozen, that start is refused with BUSY, and so are others until it answers. A child that it
// started late is ended. Without a spawner nothing can be started, so its end is reported as an
// event.
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
    std::function<void(const std::string& line)> on_line;  // Without the line end.
    // The status from waitpid(), reported after the last line. For a child that hangs: killed by
    // SIGKILL.
    std::function<void(int status)> on_end;
  };

  // Kills the child if it has not ended. No event is reported then.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void SetEvents(Events events);
  pid_t pid() const;
  // Kills the child; on_end follows within kKillMs.
  void Kill();
  // Sends a line and descriptors, which the caller keeps. Fails with kSystem, for example if the
  // child has ended.
  Result<void> Send(const std::string& line, std::span<const int> descriptors) const;

  // Becomes true when the process has ended, even after this object is destroyed.
  std::shared_ptr<const bool> ended() const;

 private:
  friend class Children;
  struct Process;
  explicit Child(std::shared_ptr<Process> process) : process_(std::move(process)) {}

  std::shared_ptr<Process> process_;
};

// Starts the children.
class Children {
 public:
  static constexpr int64_t kKillMs = 1'000;

  using SpawnerEnded = std::function<void(const Status& why)>;

  // Starts the spawner, which runs `program` too. Call it before any client's descriptor is open.
  static Result<std::unique_ptr<Children>> Create(EventLoop* loop, const std::string& program,
                                                  SpawnerEnded on_spawner_ended);
  ~Children();
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  // The first of `arguments` is the child's name (loader). Fails with kBusy, or with
  // kSystem, for example if there are no free descriptors. Both may be temporary.
  Result<std::unique_ptr<Child>> Start(const std::vector<std::string>& arguments,
                                       Child::Events events);

  // For the end of the broker: kills all remaining children and waits at most `wait_ms` for them.
  // The log names those that hang.
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
  bool is_answer_due_ = false;  // For a start that was given up.
  std::list<std::weak_ptr<Child::Process>> processes_;
};

}  // namespace gpushm::broker
