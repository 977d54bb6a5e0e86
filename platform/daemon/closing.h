// Closes the descriptors that came from one peer (a pod's broker, a container). They are closed on
// threads of this peer alone, because closing can block. They are counted, because GPU memory is
// only free once its descriptors are closed.
//
// There are three lanes. Each has one thread while it has work.
//   proven    GPU memory, pidfds, and everything else that cannot block its closer. They wait for
//             nothing but an unhealthy GPU.
//   sockets   A socket with SO_LINGER blocks its closer for as long as its maker chose. So does a
//             socket in which such a socket is queued unread. SIGKILL ends that wait.
//   files     A FUSE file blocks its closer until its daemon answers or its connection is aborted
//             (HeldUp, platform/daemon/fuse.h). SIGKILL does not end that wait. So this lane takes
//             nothing that could be the daemon's device, or could have it queued unread inside: the
//             connection ends once its last device is closed.
// So whatever one peer sends, it cannot delay the freeing of any memory, neither its own nor that
// of another peer.
//
// Threads: one at a time, except for pending, proven_pending and the waits: any.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "platform/base/clock.h"
#include "platform/base/unique_fd.h"
#include "platform/daemon/worker.h"

namespace gpushm {

class Closing {
 public:
  // Does not wait for descriptors that block their closer; see WaitForAll.
  ~Closing();

  // GPU memory, pidfds, memfds.
  void Close(std::vector<UniqueFd> fds);
  void Close(UniqueFd fd);
  // The peer's connection, and every descriptor whose kind was not recognised.
  void CloseForeign(std::vector<UniqueFd> fds);
  void CloseForeign(UniqueFd fd);

  // Starts a new holder: its descriptors do not wait behind those that the former holder sent.
  void NewHolder();

  // Number of descriptors that are not closed yet, in all lanes and of all holders.
  size_t pending() const;
  // As pending, but only of the first lane.
  size_t proven_pending() const;
  // Number of descriptors of this holder in the other two lanes. The caller that lets the holder
  // send or connect must bound this number.
  size_t foreign_pending() const;
  // Whether foreign_pending counts a file.
  bool HasForeignFile() const;

  // Both return false at the deadline.
  bool WaitForProven(const Deadline& deadline) const;
  bool WaitForAll(const Deadline& deadline) const;

  struct Held {
    uint64_t id = 0;  // Identifies the descriptor within this object.
    bool is_socket = false;
    dev_t device = 0;   // FileSystemOf a file.
    pid_t thread = -1;  // The thread that is closing it; -1: it waits behind another descriptor.
    std::string Where() const;  // For a log: "socket", or the file system's "MAJOR:MINOR".
  };
  // Sockets and files of all holders whose close was requested at least `for_ms` ago.
  std::vector<Held> HeldUp(int64_t for_ms) const;

 private:
  struct Foreign {
    uint64_t holder = 0;
    bool is_socket = false;
    dev_t device = 0;
    int64_t since_ns = 0;
    pid_t thread = -1;
  };
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    size_t proven = 0;
    uint64_t next_id = 1;
    std::map<uint64_t, Foreign> foreign;
  };
  struct Lanes {
    Worker sockets{1, Worker::Threads::kLeave};
    Worker files{1, Worker::Threads::kLeave};
  };
  static void CloseOne(Shared* shared, uint64_t id, UniqueFd fd);

  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  Worker proven_{1, Worker::Threads::kLeave};
  std::list<Lanes> foreign_{1};  // The last one belongs to the current holder.
  uint64_t holder_ = 0;
};

}  // namespace gpushm
