// Loads and saves for those who see no GPU: each in a short-lived child, the only thing in the
// sidecar that makes a context. The child is told apart from the broker so that a context's memory,
// threads and faults go with it.
//
// The child's contract (loader.h): descriptors 3 (memory), 4 (file) and 5 (a pipe to us); one line
// "<done>" after each chunk, at the end "ok <bytes> <FileWay> <moving_ns> <link_bytes_per_second>"
// or "error <code> <text>". Whatever it writes is parsed as a stranger's bytes; its end without
// "ok" is a failure.
//
// One runs at a time, so whoever hands in a pipe could keep all others from loading: what stands
// still for Settings::stall_ms is ended.
//
// Threads: the loop's.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"
#include "runtime/client/file_way.h"
#include "runtime/daemon/event_loop.h"
#include "runtime/daemon/worker.h"
#include "runtime/protocol/messages.h"

namespace gpushm::broker {

struct TransferJob {
  uint64_t client_id = 0;  // 0: the broker's own (file:).
  std::string buffer;
  protocol::Direction direction = protocol::Direction::kLoad;
  int memory = -1;  // Not owned; duplicated for the child.
  UniqueFd file;
  uint64_t size_bytes = 0;
  uint64_t mapped_bytes = 0;
  uint64_t chunk_bytes = 0;
  FileWay file_way = FileWay::kAuto;  // As protocol::TransferRequest.
};

struct TransferState {
  uint64_t client_id = 0;
  uint64_t done_bytes = 0;
  uint64_t total_bytes = 0;  // Of a stream the room for it, until it has ended.
  // Once finished well.
  FileWay file_way = FileWay::kAuto;
  uint64_t moving_ns = 0;
  uint64_t link_bytes_per_second = 0;
  bool finished = false;
  Result<void> result;  // Once finished.
};

class Transfers {
 public:
  struct Events {
    std::function<void(const std::string& buffer, protocol::Direction, uint64_t done_bytes)>
        on_progress;
    std::function<void(const std::string& buffer, protocol::Direction, const TransferState& state)>
        on_end;
  };

  struct Settings {
    std::vector<std::string> command;  // Program and arguments of the child.
    std::string driver_folder;
    int device = 0;
    // How long a client's transfer, or one with a pipe, may move no byte.
    int64_t stall_ms = 0;
  };

  Transfers(EventLoop* loop, Worker* closer, Settings settings, Events events);
  ~Transfers();

  // Returns the transfer's number.
  Result<uint64_t> Start(TransferJob job);

  // The state of a transfer that was just started.
  TransferState Look(uint64_t transfer_id) const { return transfers_.at(transfer_id).state; }
  // Its state, if it is the client's; a finished one is forgotten after this.
  Result<TransferState> Take(uint64_t client_id, uint64_t transfer_id);
  Result<void> Cancel(uint64_t client_id, uint64_t transfer_id);
  void EndClient(uint64_t client_id);
  size_t running() const { return running_; }

 private:
  struct Transfer {
    TransferState state;
    std::string buffer;
    protocol::Direction direction;
    pid_t child = -1;
    UniqueFd child_pidfd;
    UniqueFd pipe;
    std::string line;  // Read so far.
    bool said_ok = false;
    Result<void> failure;
    bool forget = false;  // Nobody will ask for the result.
    uint64_t stall_timer = 0;
    uint64_t moved = 0;  // By then, and more of it since then is no standstill.
    int64_t moved_ns = 0;
    bool stalled = false;
  };

  Result<pid_t> Spawn(const TransferJob& job, uint64_t total_bytes, int pipe_end) const;
  Result<uint64_t> TryStart(TransferJob& job);
  bool OnReadable(uint64_t id);  // False: nothing is left to read for now.
  void OnLine(Transfer& transfer, const std::string& line);
  void OnChildEnded(uint64_t id);
  void WatchForStall(uint64_t id);
  void LookForStall(uint64_t id);

  EventLoop* loop_;
  Worker* closer_;
  const Settings settings_;
  const Events events_;
  std::map<uint64_t, Transfer> transfers_;
  uint64_t next_id_ = 1;
  size_t running_ = 0;
};

}  // namespace gpushm::broker
