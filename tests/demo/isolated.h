// A process in its own PID, mount, IPC, network and UTS namespaces, like a container's entrypoint.
// It is PID 1 there, sees only its own folder of sockets, and reaches no network.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm::demo {

class Isolated {
 public:
  // Runs this program again with `arguments`. `socket_folder` is bind-mounted, read-only, over
  // `view`, an empty folder. If not root, it uses a user namespace. kDenied: the system forbids
  // those.
  static Result<Isolated> Start(const std::vector<std::string>& arguments,
                                const std::string& socket_folder, const std::string& view);

  // Sends and receives lines of text. kTimeout, kPeerDied.
  Result<void> Say(const std::string& line);
  Result<std::string> Hear(const Deadline& deadline);

  // Sends SIGKILL and waits for the end.
  void Kill();
  // Waits for the end; returns the exit code.
  Result<int> Wait(const Deadline& deadline);

  Isolated(Isolated&& other) noexcept;
  Isolated& operator=(Isolated&& other) noexcept;
  Isolated(const Isolated&) = delete;
  Isolated& operator=(const Isolated&) = delete;
  ~Isolated() { Kill(); }

 private:
  Isolated(pid_t pid, UniqueFd pidfd, UniqueFd channel);

  pid_t pid_;  // As seen outside its namespaces.
  UniqueFd pidfd_;
  UniqueFd channel_;
  std::string unread_;
};

}  // namespace gpushm::demo
