// A barrier in which this process takes part. contract/sync/barrier.h describes the sync page, and
// why it is safe.
//
// Threads: any thread may call any function; Close is the last call.
//
// Invariants
//   (1) The participant's value only grows: only one stream at a time arrives, and the host arrives
//       only when no stream has yet to arrive.
//   (2) A participant that finds the barrier broken leaves it, so that streams of others that wait
//       for it end as well.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contract/sync/barrier.h"
#include "platform/base/status.h"
#include "runtime/client/client.h"
#include "runtime/client/sync/open_page.h"
#include "runtime/client/wait.h"

namespace gpushm::client {

class Barrier {
 public:
  // Joins the barrier of that name. Makes it if there is none, or if a participant has ended.
  static Result<std::unique_ptr<Barrier>> Open(Client* client, std::string_view name,
                                               uint32_t participants, const Wait& wait);
  // kBusy: streams of this process still use it. After success the object may be destroyed.
  Result<void> Close();

  // Arrives and waits for the others. After kTimeout a further call waits for the same point.
  Result<void> WaitOnHost(const Deadline& deadline);
  // The stream arrives once its earlier work is done, then waits for the others.
  Result<void> WaitOnStream(CUstream stream);
  // Whether the last point has passed. kBusy: not yet. kEnded, kPeerDied: it never will.
  Result<void> Check();

  struct Facts {
    uint64_t generation;
    uint64_t point;  // The last point at which this participant arrived or is to arrive.
    uint32_t participants;
    uint32_t joined;
    uint32_t cell;
  };
  Facts facts() const;
  Client* client() const { return page_.client(); }
  const std::string& name() const { return page_.name(); }

 private:
  Barrier(OpenPage page, sync::Barrier participant)
      : page_(std::move(page)), participant_(std::move(participant)) {}
  static Result<std::unique_ptr<Barrier>> Make(Client* client, std::string_view name,
                                               uint32_t participants, uint64_t after_generation,
                                               const Wait& wait);
  static Result<std::unique_ptr<Barrier>> JoinOrFollow(Client* client, std::string_view name,
                                                       uint32_t participants, const Wait& wait);

  std::string WhoIsMissing(uint64_t point) const;
  uint32_t Joined() const;  // Number of cells that a participant has taken so far.
  // All of these require mutex_.
  sync::Cell& own() const { return page_.cell(participant_.cell()); }
  bool StreamIsToArrive() const;
  Result<void> MayArrive();
  Result<void> MayWaitOnStream(CUstream stream);
  Result<void> PutOn(CUstream stream, const std::vector<sync::Point>& others);
  // Also releases streams that wait for participants which have ended.
  void Leave();

  OpenPage page_;
  mutable std::mutex mutex_;
  sync::Barrier participant_;       // Under mutex_, except for Wait.
  uint64_t waited_for_ = 0;         // Under mutex_: the host's point that has not passed yet.
  CUstream last_stream_ = nullptr;  // Under mutex_.
};

}  // namespace gpushm::client
