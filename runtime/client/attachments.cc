#include "runtime/client/attachments.h"

#include <algorithm>
#include <utility>

#include "runtime/client/attach.h"
#include "runtime/client/client.h"
#include "runtime/client/names.h"

namespace gpushm::client {

using protocol::Kind;

namespace {

// How long the last detach waits for other threads and the broker before it leaves the rest for
// later.
constexpr int64_t kDetachMs = 1000;

// Whether an attachment with the right name and access satisfies `options`.
bool Serves(const Attachment& held, const AttachOptions& options) {
  const uint64_t others = options.peer_devices & ~BitOf(held.facts().device);
  return (held.page() != nullptr) == options.page && (others & ~held.facts().peer_devices) == 0;
}

// Whether it is what a look-up would find now, as far as one load tells.
bool IsFresh(const Attachment& held, const AttachOptions& options) {
  const uint64_t generation = held.facts().generation;
  if (options.generation != 0 && options.generation != generation) return false;
  if (generation < options.min_generation || held.device_lost()) return false;
  if (held.IsUnchangedAndReady()) return true;
  return options.any_state && !held.Current();
}

}  // namespace

Attachment* Attachments::Reuse(std::string_view name, const AttachOptions& options,
                               const Seen* seen) {
  if (options.own) return nullptr;
  const std::lock_guard table(mutex_);
  const auto entry = current_.find(KeyView{name, options.access});
  if (entry == current_.end()) return nullptr;
  Attachment* const held = entry->second;
  if (!Serves(*held, options)) return nullptr;
  if (seen == nullptr) {
    if (!IsFresh(*held, options)) return nullptr;
  } else {
    if (held->facts().generation != seen->found.record.generation || held->Current()) {
      return nullptr;
    }
  }
  ++held->count;
  if (!options.page) client_->counters().Add(protocol::Counter::kCachedAttaches);
  return held;
}

Attachment* Attachments::Keep(std::shared_ptr<Attachment> attachment, bool share) {
  Attachment* const kept = attachment.get();
  const std::lock_guard table(mutex_);
  all_.emplace(kept, std::move(attachment));
  if (share) current_.insert_or_assign(Key{kept->facts().name, kept->facts().access}, kept);
  return kept;
}

void Attachments::Share(Attachment* attachment) {
  const std::lock_guard table(mutex_);
  current_.insert_or_assign(Key{attachment->facts().name, attachment->facts().access}, attachment);
}

Lease Attachments::Advance(Attachment* attachment, uint64_t generation, const Lease& lease) {
  const Lease former = attachment->lease();
  const std::lock_guard table(mutex_);
  attachment->Advance(generation, client_->session().registry().Share(), lease);
  current_.try_emplace(Key{attachment->facts().name, attachment->facts().access}, attachment);
  return former;
}

Result<void> Attachments::Detach(Attachment* attachment, std::span<const CUstream> streams,
                                 bool defer) {
  std::vector<StreamFence> fences;
  if (!streams.empty()) {
    const Result<const CudaApi*> api = client_->driver().Api();
    if (!api) return std::unexpected(api.error());
    for (const CUstream stream : streams) {
      const Result<bool> pending = IsPending(**api, stream);
      if (!pending) return std::unexpected(pending.error());
      if (!*pending) continue;
      if (!defer) {
        return Fail(Code::kBusy,
                    Concat("work that uses buffer \"", attachment->facts().name,
                           "\" is pending on stream ", static_cast<const void*>(stream)),
                    "synchronise the stream, or detach with defer set to 1");
      }
      Result<StreamFence> fence = StreamFence::Record(**api, stream);
      if (!fence) return std::unexpected(fence.error());
      fences.push_back(std::move(*fence));
    }
  }
  // The session lock comes first: with a one-writer buffer, a new attach of this process must not
  // overtake the end of the lease.
  const Deadline deadline = Deadline::AfterMs(kDetachMs);
  std::shared_ptr<Attachment> last;
  {
    const std::lock_guard table(mutex_);
    if (closing_) return {};  // For an object that the client itself ends.
    for (StreamFence& fence : fences) attachment->fences.push_back(std::move(fence));
    if (attachment->count > 1) {
      --attachment->count;
      return {};
    }
  }
  const Result<SessionLock> lock = client_->session().Lock(deadline);
  {
    const std::lock_guard table(mutex_);
    if (--attachment->count > 0) return {};
    const auto entry = current_.find(KeyView{attachment->facts().name, attachment->facts().access});
    if (entry != current_.end() && entry->second == attachment) current_.erase(entry);
    auto node = all_.extract(attachment);
    if (node.empty()) {
      return Fail(Code::kInvalidArgument,
                  Concat("this attachment of buffer \"", attachment->facts().name,
                         "\", generation ", attachment->facts().generation, ", is not open"),
                  "do not use an attachment after its last detach");
    }
    last = std::move(node.mapped());
    last->RetireHandle();
    if (last->page() == nullptr) client_->counters().Add(protocol::Counter::kDetaches);
    if (!last->CanEnd()) {
      deferred_.push_back(std::move(last));
      has_chores_.store(true, std::memory_order_relaxed);
      return {};
    }
  }
  if (lock) {
    const Lease lease = last->lease();
    last.reset();
    EndLease(*lock, lease, deadline);
  } else {
    // Without the lock, Renew may be renewing the lease at this moment. It checks again afterwards.
    EndLeaseSoon(last->lease());
  }
  DoChores(deadline);
  return {};
}

bool Attachments::HoldsLease(uint64_t lease_id) const {
  const std::lock_guard table(mutex_);
  return std::any_of(all_.begin(), all_.end(),
                     [&](const auto& item) { return item.second->lease().id == lease_id; });
}

uint32_t Attachments::CountOf(const Attachment& attachment) const {
  const std::lock_guard table(mutex_);
  return attachment.count;
}

void Attachments::EndLease(const SessionLock& lock, const Lease& lease, const Deadline& deadline) {
  // Under another serial the same number means a different lease.
  if (lease.id == 0) return;
  Session& session = client_->session();
  protocol::DetachRequest request{.lease_id = lease.id};
  const auto reply = session.AskHere<protocol::EmptyReply>(lock, Kind::kDetach, request, deadline,
                                                           {.serial = lease.serial});
  if (reply) return;
  const Code code = reply.error().code();
  const bool unsaid = (code == Code::kTimeout && deadline.RemainingNs() == 0) ||
                      (code == Code::kUnavailable && lease.serial == session.peer(lock).serial);
  // The broker may already have processed it; a second detach is harmless. A resumed connection
  // still has the lease.
  if (unsaid) EndLeaseSoon(lease);
}

void Attachments::EndLeaseSoon(const Lease& lease) {
  if (lease.id == 0) return;
  const std::lock_guard table(mutex_);
  ended_.push_back(lease);
  has_chores_.store(true, std::memory_order_relaxed);
}

void Attachments::DoChores(const Deadline& call_deadline) {
  if (!has_chores_.load(std::memory_order_relaxed)) return;
  std::vector<std::shared_ptr<Attachment>> unmapped;
  const Deadline deadline = AnswerWithin(call_deadline);
  const Result<SessionLock> lock = client_->session().Lock(Deadline::AfterMs(0));
  if (!lock) return;
  std::vector<Lease> leases;
  {
    const std::lock_guard table(mutex_);
    leases.swap(ended_);
    const auto passed = std::partition(deferred_.begin(), deferred_.end(),
                                       [](const auto& d) { return !d->CanEnd(); });
    for (auto d = passed; d != deferred_.end(); ++d) {
      leases.push_back((*d)->lease());
      unmapped.push_back(std::move(*d));
    }
    deferred_.erase(passed, deferred_.end());
    has_chores_.store(!deferred_.empty(), std::memory_order_relaxed);
  }
  unmapped.clear();
  for (const Lease& lease : leases) EndLease(*lock, lease, deadline);
}

void Attachments::BeginClose() {
  const std::lock_guard table(mutex_);
  closing_ = true;
}

void Attachments::Close(const SessionLock* lock, const Deadline& deadline) {
  std::vector<Lease> leases;
  {
    const std::lock_guard table(mutex_);
    leases = std::move(ended_);
    for (const auto& [key, attachment] : all_) leases.push_back(attachment->lease());
    for (const auto& attachment : deferred_) leases.push_back(attachment->lease());
    current_.clear();
    all_.clear();
    deferred_.clear();
  }
  std::erase_if(leases, [](const Lease& lease) { return lease.id == 0; });
  // The process lives on, so the broker sees no death and must be told. A broker that was killed
  // and restarted has these leases again.
  Session& session = client_->session();
  for (int attempt = 0; lock != nullptr && !leases.empty() && attempt < 2; ++attempt) {
    (void)session.StillConnected(*lock);
    (void)session.EnsureConnected(*lock, /*wait=*/true, deadline);
    for (const Lease& lease : leases) EndLease(*lock, lease, deadline);
    const std::lock_guard table(mutex_);
    leases = std::exchange(ended_, {});
  }
}

// ---- when the connection comes back

bool Attachments::IsHeld(const Attachment* attachment) const {
  const std::lock_guard table(mutex_);
  return all_.contains(attachment) ||
         std::any_of(deferred_.begin(), deferred_.end(),
                     [&](const auto& d) { return d.get() == attachment; });
}

// A resumed connection has the same leases, with two exceptions: the plugin link was down, or a
// grant was on its way when the connection broke. Their number and sum show whether that happened.
void Attachments::Reconnected(const SessionLock& lock, const Return& how,
                              const Deadline& deadline) {
  Session& session = client_->session();
  std::vector<std::shared_ptr<Attachment>> attachments;
  uint32_t leases = 0;
  uint64_t lease_sum = 0;
  {
    const std::lock_guard table(mutex_);
    if (!how.resumed) ended_.clear();  // They ended with their connection or their broker.
    for (const auto& [key, attachment] : all_) attachments.push_back(attachment);
    attachments.insert(attachments.end(), deferred_.begin(), deferred_.end());
    for (const Lease& lease : ended_) {
      ++leases;
      lease_sum += lease.id;
    }
  }
  for (const auto& attachment : attachments) {
    leases += attachment->lease().id != 0 ? 1 : 0;
    lease_sum += attachment->lease().id;
  }
  const bool agreed = how.resumed && how.leases == leases && how.lease_sum == lease_sum;
  std::set<uint64_t> granted;
  if (how.resumed && !agreed) {
    const Result<std::set<uint64_t>> asked = AskLeases(lock, deadline);
    if (!asked) return session.Drop(lock);  // Repeated on the next connection.
    granted = *asked;
    std::set<uint64_t> unknown = granted;
    for (const auto& attachment : attachments) unknown.erase(attachment->lease().id);
    for (const uint64_t id : unknown) EndLease(lock, {session.peer(lock).serial, id}, deadline);
    const std::lock_guard table(mutex_);
    std::erase_if(ended_, [&](const Lease& lease) { return !granted.contains(lease.id); });
  }
  const RegistryHandle::Reader reader = session.registry().Share();
  for (const auto& attachment : attachments) {
    if (attachment->orphaned()) continue;
    if (!session.connected(lock)) return;  // Repeated on the next connection.
    const Lease lease = attachment->lease();
    if (agreed || granted.contains(lease.id)) {
      attachment->Adopt(reader, lease);
    } else {
      Renew(lock, attachment.get(), how.same_broker, deadline);
    }
  }
  std::vector<Lease> unsaid;
  {
    const std::lock_guard table(mutex_);
    std::erase_if(current_, [](const auto& entry) { return entry.second->orphaned(); });
    unsaid.swap(ended_);
  }
  // Immediately: otherwise a buffer with one writer would be BUSY for this process itself.
  for (const Lease& lease : unsaid) EndLease(lock, lease, deadline);
}

Result<std::set<uint64_t>> Attachments::AskLeases(const SessionLock& lock,
                                                  const Deadline& deadline) {
  Session& session = client_->session();
  std::set<uint64_t> leases;
  protocol::HoldersRequest request{};
  for (;;) {
    const auto reply =
        session.AskHere<protocol::HoldersReply>(lock, Kind::kHolders, request, deadline);
    if (!reply) return std::unexpected(reply.error());
    for (uint32_t i = 0; i < reply->count; ++i) {
      const protocol::HolderEntry& entry = reply->entries[i];
      if (entry.lease_id <= request.after_lease_id) {
        return BrokeProtocol(Concat("holders are out of order: lease ", entry.lease_id,
                                    " follows lease ", request.after_lease_id));
      }
      request.after_lease_id = entry.lease_id;
      if (entry.client_id == session.peer(lock).client_id) leases.insert(entry.lease_id);
    }
    if (reply->count < protocol::kHoldersPerReply) return leases;
  }
}

void Attachments::Renew(Attachment* attachment, const Deadline& deadline) {
  Session& session = client_->session();
  const Result<SessionLock> lock = session.Lock(deadline);
  if (!lock || !session.connected(*lock) || attachment->orphaned()) return;
  const Lease lease = attachment->lease();
  if (lease.serial != session.peer(*lock).serial) return;
  EndLease(*lock, lease, deadline);
  Renew(*lock, attachment, /*same_broker=*/true, deadline);
}

void Attachments::Renew(const SessionLock& lock, Attachment* attachment, bool same_broker,
                        const Deadline& deadline) {
  Session& session = client_->session();
  const Attachment::Facts& facts = attachment->facts();
  const RegistryHandle::Reader reader = session.registry().Share();
  const auto found = reader->Find(facts.name);
  const uint64_t serial = session.peer(lock).serial;
  if (attachment->unpublished() || !found || found->record.generation != facts.generation) {
    // The same broker still knows what became of the bytes; another broker never had them.
    if (same_broker && !attachment->unpublished()) {
      attachment->Adopt(reader, {serial, 0});
    } else {
      attachment->Orphan();
    }
    return;
  }
  // Its cells ended with the former lease.
  if (facts.transport == Transport::kHost && facts.access == Access::kReadWrite) {
    attachment->Orphan();
    return;
  }
  protocol::AttachRequest request{};
  request.name = protocol::ToNameField(facts.name);
  request.access = facts.access;
  request.generation = facts.generation;
  request.gpu_uuid = facts.gpu.bytes;
  std::vector<UniqueFd> unused;
  const auto reply = session.AskHere<protocol::AttachReply>(lock, Kind::kAttach, request, deadline,
                                                            {.received = &unused});
  if (!reply) {
    if (!session.connected(lock)) return;
    if (reply.error().code() == Code::kTimeout) {
      session.Drop(lock);
      return;
    }
    attachment->Orphan();
    return;
  }
  const Lease lease{serial, reply->lease_id};
  attachment->Adopt(reader, lease);
  if (!IsHeld(attachment)) EndLeaseSoon(lease);
}

}  // namespace gpushm::client
