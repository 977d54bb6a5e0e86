// The sync page of one name, as a participant of this process has it open. It holds what signals,
// barriers and rings have in common, above all their work with streams.
//
// Threads: any thread may call any function except Detach, which is the last call. A function that
// takes a stream needs a current context on the calling thread.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "contract/sync/frames.h"
#include "contract/sync/page.h"
#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "platform/driver/stream_fence.h"
#include "runtime/client/attach.h"
#include "runtime/client/client.h"
#include "runtime/client/held.h"
#include "runtime/client/make.h"
#include "runtime/client/wait.h"

namespace gpushm::client {

class OpenPage {
 public:
  struct Layout {
    sync::Kind kind;
    uint32_t cells;
    uint64_t body_bytes = 0;
    std::array<uint64_t, 8> settings{};
  };

  // Opens the page behind the name. kInvalidArgument: its kind is not one of `kinds`.
  static Result<OpenPage> Attach(Client* client, std::string_view name,
                                 const AttachOptions& options,
                                 std::initializer_list<sync::Kind> kinds, const Wait& wait);
  // Makes a new page, which no other process sees before Publish.
  static Result<OpenPage> Make(Client* client, std::string_view name, const Layout& layout,
                               const MakeOptions& options, const Wait& wait);
  // May be called only before Publish.
  void SetSettings(const std::array<uint64_t, 8>& settings);
  Result<void> Publish(const Wait& wait) const { return client::Publish(held_.get(), wait); }
  Result<void> Detach() { return held_.Detach(); }

  Client* client() const { return held_.client(); }
  const Attachment& attachment() const { return *held_.get(); }
  const std::string& name() const { return attachment().facts().name; }
  uint64_t generation() const { return attachment().facts().generation; }
  const sync::Page& page() const { return page_; }
  sync::Cell& cell(uint32_t index) const { return page_.cell(index); }
  // The lease that owns this participant's cells.
  uint64_t lease() const { return lease_; }
  // The holders of the leases, for an error: `container "model" (client 12)`, separated by commas.
  // Asks the broker once, for at most 50 ms, for the leases that are not known yet.
  std::string WhoAre(std::span<const uint64_t> leases) const;
  // Whether this process owns the cell. The broker would not end a process's wait for its own cell.
  bool IsOwn(const sync::Cell& cell) const {
    return client()->attachments().HoldsLease(cell.owner.load(std::memory_order_relaxed));
  }
  // Wakes those who wait for this page in event loops. Call it after what they shall see. If nobody
  // has waited yet, it costs one load.
  void RingAlarm() const;
  // As Alarm::Hear. May be called after Detach; then `lease` has ended, and it fails with kNotFound
  // or kOrphaned.
  Result<UniqueFd> HearAlarm(const Lease& lease, uint64_t connection,
                             const Deadline& deadline) const;
  // kOrphaned: the pod's broker restarted and does not know the page.
  Result<void> CheckKnown() const;
  // kBusy: a stream of this process waits for a cell.
  Result<void> CheckNoStreamWaits() const;

  // ---- streams
  Result<CUdeviceptr> OnGpu(const sync::Word& word) const;
  // kUnsupported: no context is current, or the stream is being captured. A graph freezes the
  // values that it captures.
  Result<void> CheckStream(CUstream stream) const;
  // The stream stores point.value when it gets there, and makes its earlier work visible first.
  Result<void> Store(CUstream stream, const sync::Point& point) const;
  // Whether a stream of this process has not stored yet. The values show it, too, as long as nobody
  // else stores there: the poison, or the next owner of the cell.
  bool HasPendingStores() const;
  // The stream goes on when point.value is reached. kExhausted: too many streams wait.
  Result<void> Await(CUstream stream, const sync::Point& point) const;
  // The same, if StreamWaits has already counted this wait.
  Result<void> AwaitCounted(CUstream stream, const sync::Point& point) const;

 private:
  OpenPage(Held held, const sync::Page& page)
      : held_(std::move(held)), page_(page), lease_(held_->lease().id) {}

  struct Names {
    std::mutex mutex;
    std::map<uint64_t, std::string> by_lease;  // Under mutex.
  };
  struct Stores {
    std::mutex mutex;
    std::map<CUstream, StreamFence> fences;  // Under mutex: behind each stream's last store.
  };
  static constexpr size_t kFences = 16;  // Beyond this number, fences that have passed are removed.

  Held held_;
  sync::Page page_;
  uint64_t lease_;
  std::unique_ptr<Names> names_ = std::make_unique<Names>();
  std::unique_ptr<Stores> stores_ = std::make_unique<Stores>();
  std::unique_ptr<Alarm> alarm_ = std::make_unique<Alarm>();
};

// Sleeps between attempts to open, each of which costs the broker a few requests. The sleep is 100
// us at first, then a quarter longer each time, up to 50 ms. So a standby asks 20 times a second,
// and a process that has waited for less than 0.25 s learns of its turn at most a fifth of that
// later.
class OpenRetries {
 public:
  explicit OpenRetries(const Deadline& deadline) : deadline_(deadline) {}
  // Sleeps before the next attempt. False: the deadline has passed.
  bool Again();

 private:
  const Deadline deadline_;
  int64_t step_ns_ = 100'000;
};

// Tries to open until no other process is in the way. A kTimeout error contains `waited` ("to write
// signal x") and `remedy`.
template <typename Attempt>
auto UntilOpen(const Wait& wait, std::string_view waited, std::string_view remedy, Attempt attempt)
    -> decltype(attempt()) {
  std::optional<Status> reason;  // Why the last attempt that had an answer did not open it.
  for (OpenRetries retries(wait.condition);;) {
    auto opened = attempt();
    if (opened || wait.dont_wait) return opened;
    const Code code = opened.error().code();
    const bool is_late = code == Code::kTimeout && reason;  // No time was left for an answer.
    if (!is_late) {
      if (code != Code::kAlreadyExists && code != Code::kStale && code != Code::kBusy &&
          code != Code::kNotFound) {
        return opened;
      }
      reason = opened.error();
    }
    if (is_late || !retries.Again()) {
      return Fail(Code::kTimeout, Concat("timed out waiting ", waited, ": ", reason->what()),
                  reason->remedy().empty() ? std::string(remedy) : reason->remedy());
    }
  }
}

}  // namespace gpushm::client
