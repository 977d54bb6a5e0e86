// A ring or queue in which this process takes part: the page with the state of its frames, the
// buffer with their bytes, and the streams that write and read them. contract/sync/ring.h and
// queue.h describe the page, and why it is safe.
//
// The page is named "<name>-ring", the buffer "<name>". A writer's successor puts new memory behind
// both. A reader that still reads frames of the former writer is not disturbed.
//
// Threads: any thread may call any function; frames of one participant begin one at a time.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <expected>
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
#include "runtime/client/sync/open_page.h"
#include "runtime/client/wait.h"

namespace gpushm::client {

// Passed instead of a stream by a participant whose work is done when it makes the call.
inline const CUstream kNoStream = reinterpret_cast<CUstream>(~uintptr_t{0});

class Ring {
 public:
  enum Role : uint32_t { kReader = 0, kWriter = 1 };
  struct Options {
    Role role = Role::kReader;
    // For a writer: the ring to make.
    sync::Kind kind = sync::Kind::kRing;
    sync::FrameSettings settings;
    sync::RingWriter::Readers need;
    uint32_t gpu = 0;   // Where the frames are made.
    bool keep = false;  // The memory stays when no process has the ring open.
    // For a reader of a ring: start with the oldest frame, not with the next one.
    bool from_oldest = false;
  };
  // How it is ensured that a frame is complete before it is read.
  enum Ready : uint32_t { kAlready = 0, kStream = 1, kHost = 2 };
  struct Frame {
    sync::Frame facts;
    CUdeviceptr address = 0;
    uint64_t capacity_bytes = 0;
    Ready ready = Ready::kAlready;
  };

  static Result<std::unique_ptr<Ring>> Open(Client* client, std::string_view name,
                                            const Options& options, const Wait& wait);
  // kBusy: streams of this process still use it. After success the object may be destroyed.
  Result<void> Close();

  Result<Frame> BeginWrite(const Deadline& deadline);
  // The frame is `bytes` long, and complete when the stream gets there.
  Result<void> EndWrite(const Frame& frame, CUstream stream, uint64_t bytes,
                        const sync::Metadata& metadata);
  Result<void> AbandonWrite();

  // Work that follows on the stream runs when the frame is complete.
  Result<Frame> BeginRead(CUstream stream, bool newest, const Deadline& deadline);
  // Waits until it is known whether the frame was complete. After kTimeout the frame is still open:
  // end it again. kInvalidArgument: it is not open. kDriver, kUnsupported: it is still open.
  // Otherwise it is given back when the stream gets there. After kEnded and kPeerDied its content
  // is not valid. The same holds after kOrphaned, when another reader may already have its place,
  // or another worker the item: nothing is stored.
  Result<void> EndRead(const Frame& frame, CUstream stream, const Deadline& deadline);
  // Gives the frame back without waiting for it. A queue's item goes to the next worker
  // immediately.
  Result<void> AbandonRead(const Frame& frame, CUstream stream);

  struct Facts {
    Role role;
    sync::Kind kind;
    sync::FrameSettings settings;
    uint64_t generation;
    uint64_t newest;
    uint64_t dropped;
    uint64_t taken;
    uint64_t lost;
    uint32_t cell;
    sync::CellState writer;
  };
  Facts facts() const;
  // Whether beginning a read or write would wait, and until when; never kEnded. The failure is that
  // of the call. kInvalidArgument: this process has closed it.
  std::expected<sync::LookAgain, Code> Look();
  // The alarm that rings when Look may say something else (Alarm::Hear). kNotFound: closed.
  Result<UniqueFd> HearAlarm(uint64_t connection, const Deadline& deadline);
  Client* client() const { return page_.client(); }
  const std::string& name() const { return name_; }

 private:
  using Participant = std::variant<std::monostate, sync::RingWriter, sync::RingReader,
                                   sync::QueueWriter, sync::QueueWorker>;

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

  // All of these require mutex_, except for AddressOf and AwaitReady.
  uint32_t cell() const;
  void DropStored();
  Result<sync::FrameWriter::Opened> TryOpen();
  sync::FrameWriter* Writer();
  Result<sync::Frame> TryNext(bool newest);
  sync::Frame TakeUnready(std::map<uint64_t, sync::Frame>::iterator frame);
  // Without mutex_: repeats `attempt`, which takes it, until the result is not kTimeout. It sleeps
  // on the cell of the participant that can end the wait.
  template <typename Try>
  auto Until(const Deadline& deadline, sync::Cell* sleeps_on, Try attempt) -> decltype(attempt());
  std::expected<sync::LookAgain, Code> LookHere();
  // Rings if the writer waits in an event loop. Most do not, and readers are many.
  void WakeWriter() const;
  CUdeviceptr AddressOf(uint32_t slot) const;
  // Stores `point` when the stream gets there, or immediately if there is no stream.
  Result<void> Store(const sync::Point& point, CUstream stream);
  Result<void> MayStore(CUstream stream) const;
  Result<Ready> AwaitReady(const sync::Point& point, CUstream stream, const Deadline& deadline);
  Result<void> CheckRead(uint64_t seq) const;
  Result<void> CheckOpen(uint64_t seq) const;
  bool CloseRead(uint64_t seq);
  Result<sync::Point> EndOf(const sync::Frame& frame) const;
  // The frame is given back when the stream gets there. After a failure it is unchanged.
  Result<void> Release(const sync::Frame& frame, CUstream stream);

  const std::string name_;
  const Role role_;
  OpenPage page_;
  Held frames_held_;
  const sync::FrameSettings settings_;
  mutable std::mutex mutex_;
  Participant participant_;           // Under mutex_.
  std::vector<sync::Point> pending_;  // Under mutex_: streams have not stored these yet.
  std::set<uint64_t> open_reads_;     // Under mutex_: numbers of the frames.
  // Under mutex_: frames whose read began, but could not wait for them. The writer sees them as
  // being read, and no other worker can get such an item: the next read returns them.
  std::map<uint64_t, sync::Frame> unready_;
  uint64_t passed_over_ = 0;  // Under mutex_: how many of these a read of a newer frame skipped.
  std::optional<uint64_t> writing_;  // Under mutex_: number of the open frame.
  bool closed_ = false;              // Under mutex_.
};

}  // namespace gpushm::client
