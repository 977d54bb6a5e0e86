// Loads and saves for those who see no GPU: each in a short-lived child, the only thing in the
// sidecar that makes a context. The child is told apart from the broker so that a context's memory,
// threads and faults go with it.
//
// The child's contract (loader.h): it gets its memory, and of a client's transfer the file, with an
// order on its channel (child.h); it writes one line "<done>" after each chunk, at the end "ok
// <bytes> <FileWay> <moving_ns> <link_bytes_per_second>" or "error <code> <text>". Whatever it
// writes is parsed as a stranger's bytes; its end without "ok" is a failure.
//
// One runs at a time, and none can keep the others from it for long:
//   - A client's transfer, or one with a pipe, that stands still for Settings::stall_ms is ended.
//   - A load of the broker's own (file:) that stands still gives its place to whoever wants it, and
//     is made again later: volumes may be slow for a while.
//   - A loader that SIGKILL does not end, as on a hung FUSE file system, gives its place up, too.
//   As
//     long as it is there, its container can load and save nothing else through the broker.
//
// Threads: the loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "contract/protocol/messages.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "platform/daemon/event_loop.h"
#include "platform/daemon/worker.h"
#include "platform/transfer/file_way.h"
#include "sidecar/broker/child.h"

namespace gpushm::broker {

// A loader that has its file open and waits for the memory to load it into. See file_loads.h.
struct OpenedFile {
  std::unique_ptr<Child> loader;
  uint64_t bytes = 0;
  bool is_pipe = false;
};

struct TransferJob {
  uint64_t client_id = 0;      // 0: the broker's own (file:).
  std::string container = {};  // Of the client.
  std::string buffer = {};
  protocol::Direction direction = protocol::Direction::kLoad;
  int memory = -1;  // Not owned; duplicated for the child.
  int file = -1;    // Of a client, not owned: sent on; the broker's own is an OpenedFile.
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
  // Once finished, of the broker's own: it stood still and has given its place up.
  bool gave_way = false;
  std::shared_ptr<const bool> loader_ended;
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
    std::string driver_folder;
    int device = 0;
    // How long a client's transfer, or one with a pipe, may move no byte.
    int64_t stall_ms = 0;
  };

  Transfers(EventLoop* loop, Children* children, Settings settings, Events events);
  ~Transfers();

  // Returns the transfer's number. kBusy: another one runs.
  Result<uint64_t> Start(const TransferJob& job);
  // The same for the broker's own. Takes the loader over only if it succeeds.
  Result<uint64_t> Start(const TransferJob& job, OpenedFile* file);

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
    std::string container;  // Of the client.
    std::string buffer;
    protocol::Direction direction;
    std::unique_ptr<Child> loader;  // While it runs.
    bool said_ok = false;
    Result<void> failure;
    bool forget = false;     // Nobody will ask for the result.
    bool may_stall = false;  // It gives way, and is not ended.
    uint64_t timer = 0;      // To the next look for a standstill, or for its exit.
    uint64_t moved = 0;      // By then, and more of it since then is no standstill.
    int64_t moved_ns = 0;
    bool stalled = false;
  };

  Result<void> HasRoom(const TransferJob& job);  // Or will have: see GiveWay.
  Result<uint64_t> Run(const TransferJob& job, OpenedFile* file);
  // One that gives its place to whoever wants it, or end().
  std::map<uint64_t, Transfer>::iterator FindSlow();
  void GiveWay();
  void OnLine(uint64_t id, const std::string& line);
  void OnLoaderEnded(uint64_t id, int status);
  void SetResult(Transfer& transfer, int status) const;
  void LookForStall(uint64_t id);

  EventLoop* loop_;
  Children* children_;
  const Settings settings_;
  const Events events_;
  std::map<uint64_t, Transfer> transfers_;
  // Containers with a loader that SIGKILL did not end; true: it has ended by now.
  std::map<std::string, std::shared_ptr<const bool>> hanging_;
  uint64_t next_id_ = 1;
  size_t running_ = 0;
};

}  // namespace gpushm::broker
