// Descriptors that came from one peer (a pod's broker, a container) on their way out: closed on
// threads of this peer alone, because closing can block, and counted, because GPU memory is only
// free once its descriptors are closed.
//
// Three lanes, a thread each while there is work.
//   proven    GPU memory, pidfds, and whatever else cannot hold its closer up. They wait for
//   nothing
//             but a sick GPU.
//   sockets   A socket with SO_LINGER holds its closer up for as long as its maker likes, and so
//   does
//             one in which such a socket lies unread. SIGKILL ends that wait.
//   files     A FUSE file holds its closer up until its daemon answers or its connection is aborted
//             (HeldUp, platform/daemon/fuse.h); SIGKILL does not end that wait. So nothing that
//             could be the daemon's device, or have it unread inside, waits in this lane: the
//             connection ends once its last device is closed.
// So whatever one peer sends, no other peer's memory, and not even its own, is freed later for it.
//
// Threads: one at a time, but for pending, proven_pending and the waits: any.
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
  // Does not wait for descriptors that hold their closer up: see WaitForAll.
  ~Closing();

  // GPU memory, pidfds, memfds.
  void Close(std::vector<UniqueFd> fds);
  void Close(UniqueFd fd);
  // The peer's connection, and whatever was not recognised.
  void CloseForeign(std::vector<UniqueFd> fds);
  void CloseForeign(UniqueFd fd);

  // What comes from now on is another holder's, and does not wait behind what the former sent.
  void NewHolder();

  // Descriptors that are not closed yet, of all lanes and holders.
  size_t pending() const;
  // Of them, those of the first lane.
  size_t proven_pending() const;
  // Of this holder, those of the other lanes. Whoever lets it send or connect on has to bound them.
  size_t foreign_pending() const;
  // Whether a file is among those.
  bool HasForeignFile() const;

  // False at the deadline.
  bool WaitForProven(const Deadline& deadline) const;
  bool WaitForAll(const Deadline& deadline) const;

  struct Held {
    uint64_t id = 0;  // Of this descriptor, in this object.
    bool is_socket = false;
    dev_t device = 0;           // FileSystemOf a file.
    pid_t thread = -1;          // That is closing it; -1: it waits behind another one.
    std::string Where() const;  // For a log: "socket", or the file system's "MAJOR:MINOR".
  };
  // Sockets and files of all holders whose close was asked for at least `for_ms` ago.
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
  std::list<Lanes> foreign_{1};  // The last one is this holder's.
  uint64_t holder_ = 0;
};

}  // namespace gpushm
