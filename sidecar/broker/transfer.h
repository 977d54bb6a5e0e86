// Loads and saves for clients that see no GPU. Each runs in a short-lived child, the only process
// in the sidecar that makes a context for them. A separate process means that a context's memory,
// threads and faults end with it.
//
// The child's contract (loader.h): it gets its memory, and for a client's transfer also the file,
// with an order on its channel (child.h). A loader of a model gets an empty memfd, too, into which
// it writes the description, and which it seals; a client's description comes with the order, and
// must fit what was loaded. It writes one line "<done>" after each chunk, and
// at the end "ok <bytes> <FileWay> <moving_ns> <link_bytes_per_second>" or "error <code> <text>".
// The broker parses its output as untrusted input. If it ends without "ok", the transfer failed.
//
// One transfer runs at a time on each GPU, because a second one would not make the link to it any
// faster. Those of different GPUs run at once, as far as the sidecar's memory has room for their
// contexts (Settings::at_once). None can block the others for long:
//   - A client's transfer, or one with a pipe, that makes no progress for Settings::stall_ms is
//     ended.
//   - A load of the broker's own (file:) that makes no progress gives its place to any other
//     transfer, and is repeated later, because a volume may be slow for a while.
//   - A loader that SIGKILL does not end, as on a hung FUSE file system, also gives up its place.
//     While it exists, its container cannot load or save anything else through the broker.
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
  uint64_t description_bytes = 0;  // Of what the loader will say of the content; 0: nothing.
};

// What a load says of the content it brings: sealed memory, once the load has succeeded.
struct LoadDescription {
  UniqueFd memory;
  uint64_t bytes = 0;
};

struct TransferJob {
  uint64_t client_id = 0;      // 0 for the broker's own (file:).
  std::string container = {};  // The client's.
  std::string buffer = {};
  uint32_t gpu = 0;  // The number of the buffer's GPU.
  protocol::Direction direction = protocol::Direction::kLoad;
  int memory = -1;  // Not owned; duplicated for the child.
  int file = -1;    // The client's, not owned; sent on. The broker's own file is an OpenedFile.
  uint64_t size_bytes = 0;
  uint64_t mapped_bytes = 0;
  uint64_t chunk_bytes = 0;
  FileWay file_way = FileWay::kAuto;  // As in protocol::TransferRequest.
  // The client's; null if it sent none. A loader of the broker's own brings it itself.
  std::shared_ptr<LoadDescription> description = {};
};

struct TransferState {
  uint64_t client_id = 0;
  uint64_t done_bytes = 0;
  uint64_t total_bytes = 0;  // For a stream: the available space, until it has ended.
  // Set when it has finished successfully.
  FileWay file_way = FileWay::kAuto;
  uint64_t moving_ns = 0;
  uint64_t link_bytes_per_second = 0;
  bool finished = false;
  Result<void> result;  // Set when finished.
  // Set when finished, for the broker's own load: it made no progress and gave its place up.
  bool gave_way = false;
  std::shared_ptr<const bool> loader_ended;
  std::shared_ptr<LoadDescription> description;  // Null if there is none.
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
    std::vector<std::vector<std::string>> gpus;  // By number; see Gpu::ChildArguments.
    size_t at_once = 1;                          // The most transfers at the same time.
    // How long a client's transfer, or one with a pipe, may move no byte.
    int64_t stall_ms = 0;
  };

  Transfers(EventLoop* loop, Children* children, Settings settings, Events events);
  ~Transfers();

  // Returns the transfer's number. Fails with kBusy if another one runs on that GPU, or if as many
  // run as may at once.
  Result<uint64_t> Start(const TransferJob& job);
  // The same for the broker's own. Takes the loader over only on success.
  Result<uint64_t> Start(const TransferJob& job, OpenedFile* file);

  // The state of a transfer that was just started.
  TransferState Look(uint64_t transfer_id) const { return transfers_.at(transfer_id).state; }
  // The state of the client's transfer. A finished transfer is forgotten after this.
  Result<TransferState> Take(uint64_t client_id, uint64_t transfer_id);
  Result<void> Cancel(uint64_t client_id, uint64_t transfer_id);
  void EndClient(uint64_t client_id);
  size_t running() const { return running_; }

 private:
  struct Transfer {
    TransferState state;
    std::string container;  // The client's.
    std::string buffer;
    uint32_t gpu = 0;
    protocol::Direction direction;
    std::unique_ptr<Child> loader;  // While it runs.
    bool said_ok = false;
    Result<void> failure;
    bool forget = false;     // Nobody will ask for the result.
    bool may_stall = false;  // If it stalls, it gives way instead of being ended.
    uint64_t timer = 0;      // To the next check for a stall, or for its exit.
    uint64_t moved = 0;      // At the last check; more than this means progress.
    int64_t moved_ns = 0;
    bool stalled = false;
  };

  // Also succeeds if there will be room; see GiveWay.
  Result<void> HasRoom(const TransferJob& job);
  Result<uint64_t> Run(const TransferJob& job, OpenedFile* file);
  bool IsTaken(uint32_t gpu) const;  // A transfer runs there.
  // A transfer that gives its place to one on `gpu`, or end(): one there, if that GPU's place is
  // taken.
  std::map<uint64_t, Transfer>::iterator FindSlow(uint32_t gpu);
  void GiveWay(uint32_t gpu);
  void OnLine(uint64_t id, const std::string& line);
  void OnLoaderEnded(uint64_t id, int status);
  void SetResult(Transfer& transfer, int status) const;
  void LookForStall(uint64_t id);

  EventLoop* loop_;
  Children* children_;
  const Settings settings_;
  const Events events_;
  std::map<uint64_t, Transfer> transfers_;
  // Containers with a loader that SIGKILL did not end. The value becomes true when it has ended.
  std::map<std::string, std::shared_ptr<const bool>> hanging_;
  uint64_t next_id_ = 1;
  size_t running_ = 0;
};

}  // namespace gpushm::broker
