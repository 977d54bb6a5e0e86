// A process in PID, mount, IPC, network and UTS namespaces of its own, as a container's entrypoint
// is: it is PID 1 there, sees its own folder of sockets and no other's, and reaches no network.
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
  // `view`, an empty folder. Not as root: in a user namespace; where the system forbids those,
  // kDenied says so.
  static Result<Isolated> Start(const std::vector<std::string>& arguments,
                                const std::string& socket_folder, const std::string& view);

  // Text lines to and from it. kTimeout, kPeerDied.
  Result<void> Say(const std::string& line);
  Result<std::string> Hear(const Deadline& deadline);

  // SIGKILL, and waits until it is gone.
  void Kill();
  // Waits for its end; its exit code.
  Result<int> Wait(const Deadline& deadline);

  Isolated(Isolated&& other) noexcept;
  Isolated& operator=(Isolated&& other) noexcept;
  Isolated(const Isolated&) = delete;
  Isolated& operator=(const Isolated&) = delete;
  ~Isolated() { Kill(); }

 private:
  Isolated(pid_t pid, UniqueFd pidfd, UniqueFd channel);

  pid_t pid_;  // Outside its namespaces.
  UniqueFd pidfd_;
  UniqueFd channel_;
  std::string unread_;
};

}  // namespace gpushm::demo
