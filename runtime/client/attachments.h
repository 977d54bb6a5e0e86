// The attachments of one client, and the leases behind them: which one a further attach may return,
// which ones end later, and what becomes of them when the connection comes back.
//
// Threads: any thread may call any function.
//
// Invariants
//   (1) Locks are taken in this order: session, then table. The table's lock is held for a few
//       instructions, never over a system call or a driver call that waits.
//   (2) current_ holds the attachments that a further attach may return: published, and of the
//       generation that was current when they were made. all_ owns every attachment with a count.
//       deferred_ owns those whose last detach waits for work.
//   (3) Every lease that the broker granted belongs to an attachment, is in ended_, or was
//       detached.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "platform/base/status.h"
#include "runtime/client/attachment.h"
#include "runtime/client/session.h"

namespace gpushm::client {

struct AttachOptions;
struct Seen;

class Attachments final : public SessionObserver {
 public:
  explicit Attachments(Client* client) : client_(client) {}

  // Counts one more use of an attachment that serves `options`; null: there is none. With `seen`,
  // under the session's lock: one of that generation, whatever state it was in before.
  Attachment* Reuse(std::string_view name, const AttachOptions& options,
                    const Seen* seen = nullptr);
  // Enters a new one. `share`: a further attach may return it.
  Attachment* Keep(std::shared_ptr<Attachment> attachment, bool share);
  // A further attach may return it from now on; it is published.
  void Share(Attachment* attachment);
  // It has the memory of another generation now. Returns the former lease.
  Lease Advance(Attachment* attachment, uint64_t generation, const Lease& lease);

  Result<void> Detach(Attachment* attachment, std::span<const CUstream> streams, bool defer);
  uint32_t CountOf(const Attachment& attachment) const;
  bool HoldsLease(uint64_t lease_id) const;

  void EndLease(const SessionLock& lock, const Lease& lease, const Deadline& deadline);
  // Ends the lease and requests another one, so that the broker learns that nobody completes the
  // content. Without effect if there is no connection.
  void Renew(Attachment* attachment, const Deadline& deadline);
  // Does the deferred detaches whose work has ended, and ends leases whose end could not be sent
  // before. It uses the time that the caller's call has, but at most kAnswerMs.
  void DoChores(const Deadline& call_deadline);

  // From now on a detach does nothing: all attachments end together, in Close.
  void BeginClose();
  // `lock` may be null: then the broker is told nothing.
  void Close(const SessionLock* lock, const Deadline& deadline);

 private:
  struct Key {
    std::string name;
    Access access;
  };
  struct KeyView {
    std::string_view name;
    Access access;
  };
  struct KeyLess {
    using is_transparent = void;
    bool operator()(const auto& a, const auto& b) const {
      const int order = std::string_view(a.name).compare(b.name);
      return order != 0 ? order < 0 : a.access < b.access;
    }
  };

  void EndLeaseSoon(const Lease& lease);
  void Reconnected(const SessionLock& lock, const Return& how, const Deadline& deadline) override;
  // The leases of this process as the broker lists them.
  Result<std::set<uint64_t>> AskLeases(const SessionLock& lock, const Deadline& deadline);
  void Renew(const SessionLock& lock, Attachment* attachment, bool same_broker,
             const Deadline& deadline);
  bool IsHeld(const Attachment* attachment) const;

  Client* const client_;
  mutable std::mutex mutex_;
  // All of these are guarded by mutex_.
  std::map<Key, Attachment*, KeyLess> current_;
  std::unordered_map<const Attachment*, std::shared_ptr<Attachment>> all_;
  std::vector<std::shared_ptr<Attachment>> deferred_;
  std::vector<Lease> ended_;
  bool closing_ = false;
  std::atomic<bool> has_chores_{false};  // A hint: deferred_ or ended_ is not empty.
};

}  // namespace gpushm::client
