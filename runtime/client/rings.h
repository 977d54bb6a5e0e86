// A ring or queue as this process takes part in it: the page with its frames' state, the buffer
// with their bytes, and the streams that write and read them. What the page says and why it is safe
// is in contract/sync/ring.h and queue.h.
//
// The page is named "<name>-ring", the buffer "<name>". A writer's successor puts new memory behind
// both: who still reads frames of the former one reads them in peace.
//
// Threads: any thread may call any function; frames of one participant begin one at a time.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "contract/sync/queue.h"
#include "contract/sync/ring.h"
#include "platform/base/status.h"
#include "runtime/client/client.h"
#include "runtime/client/held.h"
#include "runtime/client/open_page.h"
#include "runtime/client/wait.h"

namespace gpushm::client {

// What a participant uses where it has no stream: its work is done when it says so.
inline const CUstream kNoStream = reinterpret_cast<CUstream>(~uintptr_t{0});

class Ring {
 public:
  enum class Role : uint32_t { kReader = 0, kWriter = 1 };
  struct Options {
    Role role = Role::kReader;
    // Writer: what is made.
    signal::Kind kind = signal::Kind::kRing;
    signal::FrameSettings settings;
    signal::RingWriter::Readers need;
    bool keep = false;  // The memory stays when nobody has the ring open.
    // Reader of a ring: from the oldest frame that is there, not from the next one.
    bool from_oldest = false;
  };
  // How it is seen to that a frame is complete before it is read.
  enum class Ready : uint32_t { kAlready = 0, kStream = 1, kHost = 2 };
  struct Frame {
    signal::Frame facts;
    CUdeviceptr address = 0;
    uint64_t capacity_bytes = 0;
    Ready ready = Ready::kAlready;
  };

  static Result<std::unique_ptr<Ring>> Open(Client* client, std::string_view name,
                                            const Options& options, const Wait& wait);
  // kBusy: streams of this process still use it. After a success the object may go.
  Result<void> Close();

  Result<Frame> BeginWrite(const Deadline& deadline);
  // The frame is `bytes` long and complete when the stream gets there.
  Result<void> EndWrite(const Frame& frame, CUstream stream, uint64_t bytes,
                        const signal::Metadata& metadata);
  Result<void> AbandonWrite();

  // What follows on the stream runs when the frame is complete.
  Result<Frame> BeginRead(CUstream stream, bool newest, const Deadline& deadline);
  // Waits until it is known whether the frame was complete. kTimeout: it is still open, end it
  // again. kInvalidArgument: it is not open. kDriver, kUnsupported: it is still open. Otherwise it
  // is given back when the stream gets there. kEnded, kPeerDied: it counts for nothing. kOrphaned:
  // the same, and another reader may have its place, or the item, already: nothing is stored.
  Result<void> EndRead(const Frame& frame, CUstream stream, const Deadline& deadline);
  // The frame is given back without waiting for it. A queue's item goes to the next worker at once.
  Result<void> AbandonRead(const Frame& frame, CUstream stream);

  struct Facts {
    Role role;
    signal::Kind kind;
    signal::FrameSettings settings;
    uint64_t generation;
    uint64_t newest;
    uint64_t dropped;
    uint64_t taken;
    uint64_t lost;
    uint32_t cell;
    signal::CellState writer;
  };
  Facts facts() const;
  Client* client() const { return page_.client(); }
  const std::string& name() const { return name_; }

 private:
  using Participant = std::variant<std::monostate, signal::RingWriter, signal::RingReader,
                                   signal::QueueWriter, signal::QueueWorker>;

  Ring(std::string_view name, Role role, OpenPage page, Held frames, Participant participant);
  static Result<std::unique_ptr<Ring>> OpenReader(Client* client, std::string_view name,
                                                  const Options& options, const Wait& wait);
  static Result<std::unique_ptr<Ring>> TryWrite(Client* client, std::string_view name,
                                                const Options& options, const Wait& wait);
  static Result<std::unique_ptr<Ring>> Make(Client* client, std::string_view name,
                                            const Options& options, uint64_t after_generation,
                                            const Wait& wait);
  static Result<std::unique_ptr<Ring>> Join(std::string_view name, const Options& options,
                                            OpenPage page, const Wait& wait);

  // All with mutex_, but for AddressOf and AwaitReady.
  uint32_t cell() const;
  void DropStored();
  Result<signal::FrameWriter::Opened> TryOpen();
  signal::FrameWriter* Writer();
  Result<signal::Frame> TryNext(bool newest);
  signal::Frame TakeUnready(std::map<uint64_t, signal::Frame>::iterator frame);
  // Without mutex_: what `attempt`, which has it, does not say kTimeout to. `bell`: of who ends it.
  template <typename Try>
  auto Until(const Deadline& deadline, std::optional<signal::Bell> bell, Try attempt)
      -> decltype(attempt());
  CUdeviceptr AddressOf(uint32_t slot) const;
  // `point` when the stream gets there; now, where there is none.
  Result<void> Store(const signal::Point& point, CUstream stream);
  Result<void> MayStore(CUstream stream) const;
  Result<Ready> AwaitReady(const signal::Point& point, CUstream stream, const Deadline& deadline);
  Result<void> CheckRead(uint64_t seq) const;
  Result<void> CheckOpen(uint64_t seq) const;
  Result<signal::Point> EndOf(const signal::Frame& frame) const;
  // The frame is given back when the stream gets there. After a failure it is as it was.
  Result<void> Release(const signal::Frame& frame, CUstream stream);

  const std::string name_;
  const Role role_;
  OpenPage page_;
  Held frames_held_;
  const signal::FrameSettings settings_;
  mutable std::mutex mutex_;
  Participant participant_;             // Under mutex_.
  std::vector<signal::Point> pending_;  // Under mutex_: streams are still to store them.
  std::set<uint64_t> open_reads_;       // Under mutex_: numbers of the frames.
  // Under mutex_: frames whose read began, but could not wait for them. To the writer they are
  // being read, and an item of a queue is nobody else's: they are what the next read gets.
  std::map<uint64_t, signal::Frame> unready_;
  uint64_t passed_over_ = 0;  // Under mutex_: of these, by reads of a newer frame.
  bool writing_ = false;      // Under mutex_: a frame is open.
};

}  // namespace gpushm::client
