#include "runtime/client/client.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "contract/limits.h"
#include "platform/base/nearest.h"

namespace gpushm::client {

using protocol::Kind;
using registry::BufferRecord;
using registry::BufferState;

namespace {

// The last detach must not hang on an unhealthy broker.
constexpr int64_t kCloseMs = 1000;

std::unexpected<Status> BrokeProtocol(std::string_view rule) {
  return Fail(Code::kCorrupt, Concat("a peer broke the protocol: ", rule),
              "use a library and a sidecar of the same release; see the sidecar's log");
}

}  // namespace

Client::Client(ClientOptions options)
    : options_(std::move(options)), session_(options_.place, this, &counters_) {}

Result<std::unique_ptr<Client>> Client::Open(const ClientOptions& options, const Wait& wait) {
  std::unique_ptr<Client> client(new Client(options));
  const Result<SessionLock> lock = client->session_.Lock(wait.answer);
  if (!lock) return std::unexpected(lock.error());
  if (auto done = client->session_.EnsureConnected(*lock, !wait.dont_wait, wait.answer); !done) {
    return std::unexpected(done.error());
  }
  return client;
}

Client::~Client() {
  const Deadline deadline = Deadline::AfterMs(kCloseMs);
  const Result<SessionLock> lock = session_.Lock(deadline);
  std::vector<Lease> leases;
  decltype(objects_) objects;
  {
    const std::lock_guard table(table_mutex_);
    closing_ = true;
    objects.swap(objects_);
  }
  objects.clear();  // While the memory that they use is still mapped.
  {
    const std::lock_guard table(table_mutex_);
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
  for (int attempt = 0; lock && !leases.empty() && attempt < 2; ++attempt) {
    (void)session_.StillConnected(*lock);
    (void)session_.EnsureConnected(*lock, /*wait=*/true, deadline);
    for (const Lease& lease : leases) EndLease(*lock, lease, deadline);
    const std::lock_guard table(table_mutex_);
    leases = std::exchange(ended_, {});
  }
}

void Client::Own(std::unique_ptr<ClientObject> object) {
  const std::lock_guard table(table_mutex_);
  const ClientObject* const key = object.get();
  objects_.emplace(key, std::move(object));
}

void Client::Disown(const ClientObject* object) {
  std::unique_ptr<ClientObject> ended;
  const std::lock_guard table(table_mutex_);
  if (auto node = objects_.extract(object)) ended = std::move(node.mapped());
}

Result<const CudaApi*> Client::Driver() {
  const std::lock_guard lock(driver_mutex_);
  if (api_ == nullptr) {
    const Result<const CudaApi*> loaded = CudaApi::Load(options_.driver_folder);
    if (!loaded) return loaded;
    api_ = *loaded;
  }
  return api_;
}

Result<std::vector<DeviceInfo>> Client::Devices() {
  const Result<const CudaApi*> api = Driver();
  if (!api) return std::unexpected(api.error());
  const std::lock_guard lock(driver_mutex_);
  if (devices_.empty()) {
    Result<std::vector<DeviceInfo>> listed = ListDevices(**api);
    if (!listed) return listed;
    devices_ = std::move(*listed);
  }
  return devices_;
}

Result<DeviceInfo> Client::FindDevice(const GpuUuid& uuid) {
  const Result<std::vector<DeviceInfo>> devices = Devices();
  if (!devices) return std::unexpected(devices.error());
  const auto found = std::find_if(devices->begin(), devices->end(),
                                  [&](const DeviceInfo& d) { return d.uuid == uuid; });
  if (found != devices->end()) return *found;
  std::string visible;
  for (const DeviceInfo& device : *devices) {
    visible += visible.empty() ? "" : ", ";
    visible += device.uuid.ToString();
  }
  return Fail(
      Code::kNotFound,
      Concat("the buffer's GPU ", uuid.ToString(),
             " is not visible to this process. Visible GPUs: ", visible.empty() ? "none" : visible),
      "add gpushm.io/attach for this container, so that it gets its sidecar's GPU, "
      "and do not hide that GPU with CUDA_VISIBLE_DEVICES");
}

void Client::EndLease(const SessionLock& lock, const Lease& lease, const Deadline& deadline) {
  // Under another serial the same number means a different lease.
  if (lease.id == 0) return;
  protocol::DetachRequest request{.lease_id = lease.id};
  const auto reply = session_.AskHere<protocol::EmptyReply>(lock, protocol::Kind::kDetach, request,
                                                            deadline, {.serial = lease.serial});
  if (reply) return;
  const Code code = reply.error().code();
  const bool unsaid = (code == Code::kTimeout && deadline.RemainingNs() == 0) ||
                      (code == Code::kUnavailable && lease.serial == session_.peer(lock).serial);
  // The broker may already have processed it; a second detach is harmless. A resumed connection
  // still has the lease.
  if (unsaid) EndLeaseSoon(lease);
}

void Client::EndLeaseSoon(const Lease& lease) {
  if (lease.id == 0) return;
  const std::lock_guard table(table_mutex_);
  ended_.push_back(lease);
  has_chores_.store(true, std::memory_order_relaxed);
}

void Client::DoChores(const Deadline& call_deadline) {
  if (!has_chores_.load(std::memory_order_relaxed)) return;
  std::vector<std::shared_ptr<Attachment>> unmapped;
  const Deadline deadline = AnswerWithin(call_deadline);
  const Result<SessionLock> lock = session_.Lock(Deadline::AfterMs(0));
  if (!lock) return;
  std::vector<Lease> leases;
  {
    const std::lock_guard table(table_mutex_);
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

bool Client::IsHeld(const Attachment* attachment) const {
  const std::lock_guard table(table_mutex_);
  return all_.contains(attachment) ||
         std::any_of(deferred_.begin(), deferred_.end(),
                     [&](const auto& d) { return d.get() == attachment; });
}

// A resumed connection has the same leases, with two exceptions: the plugin link was down, or a
// grant was on its way when the connection broke. Their number and sum show whether that happened.
void Client::Reconnected(const SessionLock& lock, const Return& how, const Deadline& deadline) {
  std::vector<std::shared_ptr<Attachment>> attachments;
  uint32_t leases = 0;
  uint64_t lease_sum = 0;
  {
    const std::lock_guard table(table_mutex_);
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
    if (!asked) return session_.Drop(lock);  // Repeated on the next connection.
    granted = *asked;
    std::set<uint64_t> unknown = granted;
    for (const auto& attachment : attachments) unknown.erase(attachment->lease().id);
    for (const uint64_t id : unknown) EndLease(lock, {session_.peer(lock).serial, id}, deadline);
    const std::lock_guard table(table_mutex_);
    std::erase_if(ended_, [&](const Lease& lease) { return !granted.contains(lease.id); });
  }
  const RegistryHandle::Reader reader = session_.registry().Share();
  for (const auto& attachment : attachments) {
    if (attachment->orphaned()) continue;
    if (!session_.connected(lock)) return;  // Repeated on the next connection.
    const Lease lease = attachment->lease();
    if (agreed || granted.contains(lease.id)) {
      attachment->Adopt(reader, lease);
    } else {
      Renew(lock, attachment.get(), how.same_broker, deadline);
    }
  }
  std::vector<Lease> unsaid;
  {
    const std::lock_guard table(table_mutex_);
    std::erase_if(current_, [](const auto& entry) { return entry.second->orphaned(); });
    unsaid.swap(ended_);
  }
  // Immediately: otherwise a buffer with one writer would be BUSY for this process itself.
  for (const Lease& lease : unsaid) EndLease(lock, lease, deadline);
}

Result<std::set<uint64_t>> Client::AskLeases(const SessionLock& lock, const Deadline& deadline) {
  std::set<uint64_t> leases;
  protocol::HoldersRequest request{};
  for (;;) {
    const auto reply =
        session_.AskHere<protocol::HoldersReply>(lock, protocol::Kind::kHolders, request, deadline);
    if (!reply) return std::unexpected(reply.error());
    for (uint32_t i = 0; i < reply->count; ++i) {
      const protocol::HolderEntry& entry = reply->entries[i];
      if (entry.lease_id <= request.after_lease_id) {
        return BrokeProtocol(Concat("holders are out of order: lease ", entry.lease_id,
                                    " follows lease ", request.after_lease_id));
      }
      request.after_lease_id = entry.lease_id;
      if (entry.client_id == session_.peer(lock).client_id) leases.insert(entry.lease_id);
    }
    if (reply->count < protocol::kHoldersPerReply) return leases;
  }
}

void Client::Renew(const SessionLock& lock, Attachment* attachment, bool same_broker,
                   const Deadline& deadline) {
  const Attachment::Facts& facts = attachment->facts();
  const RegistryHandle::Reader reader = session_.registry().Share();
  const auto found = reader->Find(facts.name);
  const uint64_t serial = session_.peer(lock).serial;
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
  if (facts.transport == protocol::Transport::kHost && facts.access == Access::kReadWrite) {
    attachment->Orphan();
    return;
  }
  protocol::AttachRequest request{};
  request.name = protocol::ToNameField(facts.name);
  request.access = static_cast<uint32_t>(facts.access);
  request.generation = facts.generation;
  request.gpu_uuid = facts.gpu.bytes;
  std::vector<UniqueFd> unused;
  const auto reply = session_.AskHere<protocol::AttachReply>(lock, protocol::Kind::kAttach, request,
                                                             deadline, {.received = &unused});
  if (!reply) {
    if (!session_.connected(lock)) return;
    if (reply.error().code() == Code::kTimeout) {
      session_.Drop(lock);
      return;
    }
    attachment->Orphan();
    return;
  }
  const Lease lease{serial, reply->lease_id};
  attachment->Adopt(reader, lease);
  if (!IsHeld(attachment)) EndLeaseSoon(lease);
}

// Looking up, listing and waiting: answers from the registry and from the broker.

namespace {

// The name does not exist; most often it is misspelt.
Status NoSuchName(const Status& not_found, std::string_view name,
                  const registry::RegistryReader& reader) {
  const Result<std::vector<BufferRecord>> records = reader.List();
  if (!records) return not_found;
  std::vector<std::string_view> names;
  for (const BufferRecord& record : *records) {
    names.push_back(record.name.view());
    if (names.back() != name) continue;  // For example, the name of a ring that does not exist.
    const bool is_page = (record.flags & registry::kRecordPage) != 0;
    return {not_found.code(),
            Concat(not_found.what(), "; there is only a ",
                   is_page ? "signal, barrier, ring or queue" : "buffer", " of that name"),
            "start its writer, or open the existing object with the call for its kind"};
  }
  std::string meant;
  for (const std::string_view similar : Similar(name, names)) {
    meant += Concat(meant.empty() ? "did you mean \"" : " or \"", similar, "\"");
  }
  if (meant.empty()) return not_found;
  return {not_found.code(), not_found.what(), Concat(meant, "? ", not_found.remedy())};
}

}  // namespace

Result<registry::Found> Client::Lookup(std::string_view name) const {
  return session_.registry().Read(
      [&](const registry::RegistryReader& reader) { return reader.Find(name); });
}

Result<Client::WithReason> Client::LookupReason(std::string_view name) const {
  return session_.registry().Read(
      [&](const registry::RegistryReader& reader) -> Result<WithReason> {
        for (int i = 0; i < limits::kReadAttempts; ++i) {
          const Result<registry::Found> found = reader.Find(name);
          if (!found) return std::unexpected(found.error());
          WithReason seen{.record = found->record, .reason = reader.ReasonOf(*found)};
          const bool is_whole = seen.reason.empty() == (registry::ReasonCode(seen.record) == 0);
          if (is_whole) return seen;
        }
        return Fail(Code::kContended,
                    Concat("buffer \"", name, "\" changed during every attempt to read its reason"),
                    "try again");
      });
}

Result<std::vector<BufferRecord>> Client::List() {
  const Deadline deadline = Deadline::AfterMs(kAnswerMs);
  DoChores(deadline);
  session_.NoticeLoss(deadline);
  const RegistryHandle::Reader reader = session_.registry().Share();
  Result<std::vector<BufferRecord>> records = reader->List();
  for (int i = 1; i < limits::kReadAttempts && !records; ++i) {
    if (records.error().code() != Code::kContended) break;
    records = reader->List();
  }
  if (records) {
    std::sort(records->begin(), records->end(), [](const BufferRecord& a, const BufferRecord& b) {
      return a.name.view() < b.name.view();
    });
  }
  return records;
}

Result<Client::Seen> Client::Await(std::string_view name, const Judge& judge, const Wait& wait,
                                   const Wanted& wanted) {
  int64_t sleeps_since_ns = 0;
  Result<Seen> seen = LookUntil(name, judge, wait, wanted, &sleeps_since_ns);
  if (sleeps_since_ns == 0) return seen;
  if (seen) counters_.Add(protocol::Counter::kWaits);
  counters_.Add(protocol::Counter::kWaitNs, static_cast<uint64_t>(MonotonicNs() - sleeps_since_ns));
  if (!seen && seen.error().code() == Code::kTimeout) {
    counters_.Add(protocol::Counter::kWaitsTimedOut);
  }
  return seen;
}

namespace {

// Whether its GPU is. A page needs any GPU, and so does a name that does not exist (null).
bool IsLost(const registry::RegistryReader& reader, const BufferRecord* record) {
  if (record == nullptr || (record->flags & registry::kRecordPage) != 0) {
    return reader.all_devices_lost();
  }
  return reader.device_lost(record->gpu_number);
}

}  // namespace

Result<Client::Seen> Client::LookUntil(std::string_view name, const Judge& judge, const Wait& wait,
                                       const Wanted& wanted, int64_t* sleeps_since_ns) {
  const std::string_view called = wanted.called.empty() ? name : wanted.called;
  const auto quoted = [&] { return Concat(wanted.kind, " \"", called, "\""); };
  for (;;) {
    const RegistryHandle::Reader reader = session_.registry().Share();
    const uint64_t version = reader->table_version();
    // Losing the GPU also changes the table version, so waiters below wake up.
    Result<registry::Found> found = reader->Find(name);
    if (IsLost(*reader, found ? &found->record : nullptr)) {
      return Fail(Code::kDeviceLost, Concat("the GPU of ", quoted(), " is lost"),
                  "reset the GPU, or drain the node");
    }
    std::optional<Status> not_yet;
    if (found) {
      Verdict verdict = judge(found->record, reader->ReasonOf(*found));
      if (verdict.kind == Verdict::Kind::kAccept) return Seen{*found, reader};
      if (verdict.kind == Verdict::Kind::kFinal) return std::unexpected(*verdict.reason);
      not_yet = std::move(verdict.reason);
    } else {
      const Code code = found.error().code();
      if (code != Code::kNotFound && code != Code::kContended) {
        return std::unexpected(found.error());
      }
      not_yet = found.error();
    }
    const bool answers = session_.NoticeLoss(wait.answer);
    if (session_.registry().Share() != reader) continue;
    if (wait.condition.Passed()) {
      if (!found && not_yet->code() == Code::kNotFound) {
        not_yet = NoSuchName(Status(Code::kNotFound, Concat("no ", quoted()), not_yet->remedy()),
                             called, *reader);
      }
      if (wait.dont_wait) return std::unexpected(*not_yet);
      if (!answers) {
        return Fail(Code::kUnavailable, Concat("no broker answers while waiting for ", quoted()),
                    "check that the sidecar is running and that its socket "
                    "folder is mounted here; GPUSHM_DIR names that folder");
      }
      return Fail(Code::kTimeout, Concat("timed out waiting for ", quoted(), ": ", not_yet->what()),
                  not_yet->remedy());
    }
    if (*sleeps_since_ns == 0) *sleeps_since_ns = MonotonicNs();
    reader->WaitForChange(version, wait.condition);
  }
}

Client::Verdict Client::HasContent(const BufferRecord& record, const std::string& reason) {
  if (record.state != BufferState::kLoading) return {};
  if (!reason.empty()) {
    return {Verdict::Kind::kNotYet,
            Status(Code::kLoading, reason, "do what this says, then load it, or wait again")};
  }
  return {Verdict::Kind::kNotYet,
          Status(Code::kLoading,
                 Concat(record.loaded_bytes, " of ", record.size_bytes, " bytes are loaded"),
                 "use a longer timeout")};
}

Result<BufferRecord> Client::WaitFor(std::string_view name, uint64_t min_generation,
                                     const Wait& wait) {
  if (auto valid = protocol::CheckName(name, "name"); !valid) {
    return std::unexpected(valid.error());
  }
  DoChores(wait.answer);
  const Judge judge = [&](const BufferRecord& record, const std::string& reason) -> Verdict {
    if (record.generation < min_generation) {
      return {Verdict::Kind::kNotYet,
              Status(Code::kNotFound, Concat("its generation is ", record.generation, ", not yet ",
                                             min_generation))};
    }
    if (record.state == BufferState::kFailed) {
      return {Verdict::Kind::kFinal,
              Status(Code::kSystem,
                     Concat("loading \"", name, "\" failed", reason.empty() ? "" : ": ", reason),
                     "load it again: gpushmctl load")};
    }
    return HasContent(record, reason);
  };
  Result<Seen> seen = Await(name, judge, wait);
  if (!seen) return std::unexpected(seen.error());
  return seen->found.record;
}

Result<std::vector<protocol::HolderEntry>> Client::Holders(std::string_view name,
                                                           const Wait& wait) {
  if (!name.empty()) {
    if (auto valid = protocol::CheckName(name, "name"); !valid) {
      return std::unexpected(valid.error());
    }
  }
  DoChores(wait.answer);
  const Result<SessionLock> lock = session_.Lock(wait.answer);
  if (!lock) return std::unexpected(lock.error());
  std::vector<protocol::HolderEntry> holders;
  protocol::HoldersRequest request{};
  request.name = protocol::ToNameField(name);
  for (;;) {
    const auto reply = session_.Ask<protocol::HoldersReply>(
        *lock, Kind::kHolders, request, wait.answer, {.loss = Call::Loss::kRepeatable});
    if (!reply) return std::unexpected(reply.error());
    for (uint32_t i = 0; i < reply->count; ++i) {
      const protocol::HolderEntry& entry = reply->entries[i];
      if (entry.lease_id <= request.after_lease_id || holders.size() >= limits::kLeases) {
        session_.Drop(*lock);
        return BrokeProtocol(Concat("holders are out of order or too many: lease ", entry.lease_id,
                                    " follows lease ", request.after_lease_id, " after ",
                                    holders.size(), " of at most ", limits::kLeases, " holders"));
      }
      request.after_lease_id = entry.lease_id;
      holders.push_back(entry);
    }
    if (reply->count < protocol::kHoldersPerReply) return holders;
  }
}

Result<protocol::BrokerInfoReply> Client::Broker(const Wait& wait) {
  DoChores(wait.answer);
  const Result<SessionLock> lock = session_.Lock(wait.answer);
  if (!lock) return std::unexpected(lock.error());
  return session_.Ask<protocol::BrokerInfoReply>(*lock, Kind::kBrokerInfo,
                                                 protocol::BrokerInfoRequest{}, wait.answer,
                                                 {.loss = Call::Loss::kRepeatable});
}

Result<std::vector<protocol::GpuEntry>> Client::Gpus(const Wait& wait) {
  DoChores(wait.answer);
  const Result<SessionLock> lock = session_.Lock(wait.answer);
  if (!lock) return std::unexpected(lock.error());
  if (auto done = session_.EnsureConnected(*lock, !wait.dont_wait, wait.answer); !done) {
    return std::unexpected(done.error());
  }
  return AskForGpus(*lock, wait);
}

Result<std::vector<protocol::GpuEntry>> Client::AskForGpus(const SessionLock& lock,
                                                           const Wait& wait) {
  const auto reply = session_.Ask<protocol::GpusReply>(
      lock, Kind::kGpus, protocol::GpusRequest{}, wait.answer, {.loss = Call::Loss::kRepeatable});
  if (!reply) return std::unexpected(reply.error());
  return std::vector<protocol::GpuEntry>(reply->entries.begin(),
                                         reply->entries.begin() + reply->count);
}

// Attaching and detaching.

namespace {

// How long the last detach waits for other threads and the broker before it leaves the rest for
// later.
constexpr int64_t kDetachMs = 1000;

// Whether an attachment with the right name and access satisfies `options`.
bool Serves(const Attachment& held, const AttachOptions& options) {
  const uint64_t others = options.peers.devices & ~BitOf(held.facts().device);
  return (held.page() != nullptr) == options.page && (others & ~held.facts().peer_devices) == 0;
}

}  // namespace

Attachment* Client::Cached(std::string_view name, const AttachOptions& options) {
  if (options.own) return nullptr;
  const std::lock_guard table(table_mutex_);
  const auto entry = current_.find(KeyView{name, options.access});
  if (entry == current_.end()) return nullptr;
  Attachment* const attachment = entry->second;
  if (options.generation != 0 && options.generation != attachment->facts().generation) {
    return nullptr;
  }
  if (attachment->facts().generation < options.min_generation) return nullptr;
  if (attachment->device_lost() || !Serves(*attachment, options)) return nullptr;
  if (!attachment->IsUnchangedAndReady()) {
    if (!options.any_state || attachment->Current().has_value()) return nullptr;
  }
  ++attachment->count;
  if (!options.page) counters_.Add(protocol::Counter::kCachedAttaches);
  return attachment;
}

Result<Attachment*> Client::Attach(std::string_view name, const AttachOptions& options,
                                   const Wait& wait) {
  Result<Attachment*> attached = AttachAny(name, options, wait);
  if (!attached || options.access != Access::kReadWrite || options.page) return attached;
  // The broker forgets the digest when it grants a lease to write. It does not know of an attach to
  // what this process holds already.
  Attachment& held = **attached;
  const auto found = Lookup(name);
  if (!found || found->record.generation != held.facts().generation ||
      found->record.digest.empty()) {
    return attached;
  }
  const auto said = ReportContent(held, held.ContentBytes(), /*complete=*/true, wait);
  if (said) return attached;
  (void)Detach(&held, {}, /*defer=*/false);
  return std::unexpected(said.error());
}

Result<Attachment*> Client::AttachAny(std::string_view name, const AttachOptions& options,
                                      const Wait& wait) {
  DoChores(wait.answer);
  // Before the cache, because this may orphan the attachments of a dead broker.
  session_.NoticeLoss(wait.answer);
  if (Attachment* const held = Cached(name, options)) return held;
  if (auto valid = protocol::CheckName(name, "name"); !valid) {
    return std::unexpected(valid.error());
  }
  const Judge judge = [&](const BufferRecord& record, const std::string& reason) -> Verdict {
    const bool is_page = (record.flags & registry::kRecordPage) != 0;
    if (is_page != options.page) {
      return {
          Verdict::Kind::kFinal,
          Status(Code::kInvalidArgument,
                 Concat('"', name, is_page ? "\" is a signal, barrier or ring" : "\" is a buffer",
                        ", not a ", options.kind),
                 is_page ? "open it with the call for its kind: "
                           "gpushm_signal_open, gpushm_barrier_open or gpushm_ring_open"
                         : "use another name, or open the buffer with gpushm_attach")};
    }
    if (record.generation < options.min_generation) {
      return {Verdict::Kind::kNotYet,
              Status(Code::kNotFound, "its writer has ended, and no other writer has opened it")};
    }
    if (options.generation != 0 && record.generation != options.generation) {
      return {Verdict::Kind::kFinal,
              Status(Code::kStale,
                     Concat("its generation is ", record.generation, ", not ", options.generation),
                     "look up the current generation, or attach without one")};
    }
    // If a buffer failed to load, the broker gives the reason.
    return options.any_state ? Verdict{} : HasContent(record, reason);
  };
  for (int attempt = 1;; ++attempt) {
    const Result<Seen> seen = Await(name, judge, wait, {options.kind, options.called});
    if (!seen) return std::unexpected(seen.error());
    const Result<SessionLock> lock = session_.Lock(wait.answer);
    if (!lock) return std::unexpected(lock.error());
    {
      // This process may hold it already: another thread attached it, or its state changed
      // meanwhile.
      const std::lock_guard table(table_mutex_);
      const auto entry = current_.find(KeyView{name, options.access});
      if (entry != current_.end() && !options.own && !entry->second->orphaned() &&
          entry->second->facts().generation == seen->found.record.generation &&
          Serves(*entry->second, options)) {
        entry->second->NoteSeen(seen->reader, seen->found);
        ++entry->second->count;
        if (!options.page) counters_.Add(protocol::Counter::kCachedAttaches);
        return entry->second;
      }
    }
    const int64_t begun_ns = MonotonicNs();
    Result<Attachment*> attached = AttachNew(*lock, options, *seen, wait);
    if (attached && !options.page) counters_.AddFirstAttach(MonotonicNs() - begun_ns);
    if (attached) return attached;
    const Code code = attached.error().code();
    // Between the look-up and the request, the name may have moved or the broker restarted.
    const bool moved =
        (code == Code::kStale || code == Code::kNotFound) &&
        (session_.registry().Share() != seen->reader || !seen->reader->IsCurrent(seen->found.ref));
    if (!moved || options.generation != 0 || attempt == limits::kReadAttempts) return attached;
  }
}

Result<Attachment*> Client::AttachNew(const SessionLock& lock, const AttachOptions& options,
                                      const Seen& seen, const Wait& wait) {
  const BufferRecord& record = seen.found.record;
  if (IsLost(*seen.reader, &record)) {
    return Fail(Code::kDeviceLost,
                Concat("the buffer's GPU ", GpuUuid{record.gpu}.ToString(), " is lost"),
                "reset the GPU, or drain the node");
  }
  // A process that only waits and signals needs no GPU.
  const bool is_page = (record.flags & registry::kRecordPage) != 0;
  const Result<DeviceInfo> device = is_page ? DeviceInfo() : FindDevice(GpuUuid{record.gpu});
  if (!device) return std::unexpected(device.error());
  PeerPlan peers;
  if (!is_page && options.peers.devices != 0) {
    auto planned = Plan(record, *device, options.peers);
    if (!planned) return std::unexpected(planned.error());
    peers = std::move(*planned);
  }
  auto grant = RequestLease(lock, record, options.access, peers.way, wait);
  if (!grant) return std::unexpected(grant.error());
  return Enter(lock, options.access, *device, /*unpublished=*/false, std::move(*grant), &seen, wait,
               peers, !options.own);
}

Result<Client::Grant> Client::RequestLease(const SessionLock& lock, const BufferRecord& record,
                                           Access access, protocol::PeerWay way, const Wait& wait) {
  protocol::AttachRequest request{};
  request.name = protocol::ToNameField(record.name.view());
  request.access = static_cast<uint32_t>(access);
  request.peer_way = static_cast<uint32_t>(way);
  request.generation = record.generation;
  request.gpu_uuid = record.gpu;
  Grant grant{.record = record};
  const auto reply = session_.Ask<protocol::AttachReply>(
      lock, Kind::kAttach, request, wait.answer,
      {.loss = Call::Loss::kRepeatable, .received = &grant.descriptors});
  if (!reply) return std::unexpected(reply.error());
  grant.reply = *reply;
  if (auto fetched = FetchBlocks(lock, &grant, wait); !fetched) {
    EndLease(lock, {session_.peer(lock).serial, reply->lease_id}, wait.answer);
    return std::unexpected(fetched.error());
  }
  return grant;
}

Result<void> Client::FetchBlocks(const SessionLock& lock, Grant* grant, const Wait& wait) {
  const uint64_t serial = session_.peer(lock).serial;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < grant->reply.blocks; ++i) {
    const protocol::BlockRequest request{
        .lease_id = grant->reply.lease_id, .index = i, .reserved = 0};
    std::vector<UniqueFd> received;
    const auto block = session_.Ask<protocol::BlockReply>(lock, Kind::kBlock, request, wait.answer,
                                                          {.loss = Call::Loss::kRepeatable,
                                                           .serial = serial,
                                                           .received = &received,
                                                           .grants_lease = false});
    if (!block) return std::unexpected(block.error());
    if (received.size() != 1 || block->mapped_bytes > grant->record.mapped_bytes - bytes) {
      session_.Drop(lock);
      return BrokeProtocol(Concat("block ", i, " of ", grant->reply.blocks, " has ",
                                  block->mapped_bytes, " bytes and ", received.size(),
                                  " descriptors, after ", bytes, " of ", grant->record.mapped_bytes,
                                  " bytes"));
    }
    bytes += block->mapped_bytes;
    grant->descriptors.push_back(std::move(received[0]));
    grant->block_bytes.push_back(block->mapped_bytes);
  }
  if (grant->reply.blocks == 0 || bytes == grant->record.mapped_bytes) return {};
  session_.Drop(lock);
  return BrokeProtocol(Concat(grant->reply.blocks, " blocks have ", bytes, " bytes instead of ",
                              grant->record.mapped_bytes));
}

Result<PeerPlan> Client::Plan(const BufferRecord& record, const DeviceInfo& device,
                              const PeerOptions& options) {
  if (record.transport == registry::Transport::kCuIpc) {
    return Fail(Code::kUnsupported, "peer GPUs cannot map a buffer of transport cuipc",
                "offer it with allow_copy, or allocate it with cuMemCreate");
  }
  const Result<const CudaApi*> api = Driver();
  if (!api) return std::unexpected(api.error());
  const Result<std::vector<DeviceInfo>> devices = Devices();
  if (!devices) return std::unexpected(devices.error());
  return PlanPeers(**api, *devices, device, options);
}

Result<Attachment::Memory> Client::Map(const DeviceInfo& device, Access access, const Grant& grant,
                                       const PeerPlan& peers, const Deadline& deadline,
                                       CUdeviceptr* address) {
  if (grant.is_page()) {
    auto page = PageMapping::Map(grant.descriptors[0], grant.record.mapped_bytes,
                                 access == Access::kReadWrite);
    if (!page) return std::unexpected(page.error());
    *address = reinterpret_cast<CUdeviceptr>((*page)->address());
    return Attachment::Memory(std::move(*page));
  }
  return MapDevice(device, access, grant, peers, deadline, address);
}

Result<Attachment::Memory> Client::MapDevice(const DeviceInfo& device, Access access,
                                             const Grant& grant, const PeerPlan& peers,
                                             const Deadline& deadline, CUdeviceptr* address) {
  const Result<const CudaApi*> api = Driver();
  if (!api) return std::unexpected(api.error());
  if (!grant.is_cuipc()) {
    std::vector<DeviceMapping::Block> blocks;
    for (size_t i = 0; i < grant.descriptors.size(); ++i) {
      Result<DeviceMemory> memory = DeviceMemory::Import(**api, grant.descriptors[i].get());
      if (!memory) return std::unexpected(memory.error());
      blocks.push_back({std::move(*memory), grant.block_bytes.empty() ? grant.record.mapped_bytes
                                                                      : grant.block_bytes[i]});
    }
    Result<DeviceMapping> mapping =
        DeviceMapping::Map(**api, blocks, device.device, access, peers.mapped);
    if (mapping && peers.staged) {
      mapping = StageCopy(**api, *mapping, device.device, *peers.staged, deadline);
    }
    if (!mapping) return std::unexpected(mapping.error());
    *address = mapping->address() + grant.reply.offset;
    return Attachment::Memory(std::move(*mapping));
  }
  if (grant.reply.offerer_pid == CudaPid()) {
    return Fail(Code::kUnsupported,
                Concat("CUDA cannot open this buffer: "
                       "the process that offered it and this process both have PID ",
                       CudaPid(), " in their containers"),
                "offer it with allow_copy, allocate it with cuMemCreate, "
                "or start one of the two programs from a shell, so that it gets another PID");
  }
  Result<IpcMapping> mapping = IpcMapping::Open(**api, grant.reply.cuipc_handle);
  if (!mapping) return std::unexpected(mapping.error());
  *address = mapping->base() + grant.reply.offset;
  return Attachment::Memory(std::move(*mapping));
}

Result<Attachment*> Client::Enter(const SessionLock& lock, Access access, const DeviceInfo& device,
                                  bool unpublished, Grant grant, const Seen* seen, const Wait& wait,
                                  const PeerPlan& peers, bool share) {
  const BufferRecord& record = grant.record;
  const protocol::AttachReply& reply = grant.reply;
  const size_t expected_descriptors = grant.is_cuipc() ? 0 : reply.blocks != 0 ? reply.blocks : 1;
  std::string broken;
  if (grant.descriptors.size() != expected_descriptors) {
    broken = Concat("a grant with ", grant.descriptors.size(), " descriptors instead of ",
                    expected_descriptors);
  }
  const bool is_part = grant.is_cuipc() || reply.blocks != 0;
  if (reply.offset > (is_part ? record.mapped_bytes - record.size_bytes : 0)) {
    broken = Concat("a grant that reaches beyond its allocation: ", record.size_bytes,
                    " bytes at offset ", reply.offset, " of ", record.mapped_bytes, " bytes");
  }
  if (!broken.empty()) {
    session_.Drop(lock);
    return BrokeProtocol(broken);
  }
  const Lease lease{session_.peer(lock).serial, reply.lease_id};
  CUdeviceptr address = 0;
  Result<Attachment::Memory> memory = Map(device, access, grant, peers, wait.answer, &address);
  if (!memory) {
    EndLease(lock, lease, wait.answer);
    return std::unexpected(memory.error());
  }
  const auto attachment = std::make_shared<Attachment>(
      Attachment::Facts{.client = this,
                        .name = std::string(record.name.view()),
                        .access = access,
                        .generation = record.generation,
                        .size_bytes = record.size_bytes,
                        .mapped_bytes = record.mapped_bytes,
                        .transport = grant.is_page()
                                         ? protocol::Transport::kHost
                                         : static_cast<protocol::Transport>(record.transport),
                        .blocks = reply.blocks,
                        .device = peers.staged.value_or(device.device),
                        .gpu = device.uuid,
                        .gpu_number = record.gpu_number,
                        .address = address,
                        .unpublished = unpublished,
                        .peer_devices = peers.mapped_devices(),
                        .peer_way = peers.way},
      std::move(*memory), lease, session_.registry().Share());
  if (seen != nullptr) {
    attachment->NoteSeen(seen->reader, seen->found);
  } else {
    (void)attachment->Current();
  }
  const std::lock_guard table(table_mutex_);
  all_.emplace(attachment.get(), attachment);
  // A staged copy belongs to the caller alone.
  if (!unpublished && !peers.staged && share) {
    current_.insert_or_assign(Key{attachment->facts().name, access}, attachment.get());
  }
  CountPeers(peers.way);
  return attachment.get();
}

void Client::CountPeers(protocol::PeerWay way) {
  if (way == protocol::PeerWay::kNvLink) counters_.Add(protocol::Counter::kNvLinkAttaches);
  if (way == protocol::PeerWay::kPcie) counters_.Add(protocol::Counter::kPcieAttaches);
  if (way == protocol::PeerWay::kStaged) counters_.Add(protocol::Counter::kStagedAttaches);
}

Result<void> Client::Detach(Attachment* attachment, std::span<const CUstream> streams, bool defer) {
  std::vector<StreamFence> fences;
  if (!streams.empty()) {
    const Result<const CudaApi*> api = Driver();
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
    const std::lock_guard table(table_mutex_);
    if (closing_) return {};  // For an object that the client itself ends.
    for (StreamFence& fence : fences) attachment->fences.push_back(std::move(fence));
    if (attachment->count > 1) {
      --attachment->count;
      return {};
    }
  }
  const Result<SessionLock> lock = session_.Lock(deadline);
  {
    const std::lock_guard table(table_mutex_);
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
    if (last->page() == nullptr) counters_.Add(protocol::Counter::kDetaches);
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

bool Client::HoldsLease(uint64_t lease_id) const {
  const std::lock_guard table(table_mutex_);
  return std::any_of(all_.begin(), all_.end(),
                     [&](const auto& item) { return item.second->lease().id == lease_id; });
}

uint32_t Client::CountOf(const Attachment& attachment) const {
  const std::lock_guard table(table_mutex_);
  return attachment.count;
}

// Creating, replacing, publishing and deleting.

namespace {

Result<void> CheckMake(std::string_view name, uint64_t size_bytes, const MakeOptions& options,
                       bool attach) {
  if (auto valid = protocol::CheckName(name, "name"); !valid) return valid;
  if (size_bytes > limits::kBufferBytes) {
    return Fail(Code::kInvalidArgument, Concat("cannot make a buffer of ", size_bytes, " bytes"),
                Concat("the limit is ", limits::kBufferBytes, " bytes"));
  }
  if (options.unpublished && !attach) {
    return Fail(Code::kInvalidArgument, "an unpublished buffer needs an attachment",
                "request the attachment, or do not set `unpublished`");
  }
  return {};
}

}  // namespace

Result<Attachment*> Client::Create(std::string_view name, uint64_t size_bytes,
                                   const MakeOptions& options, bool attach, const Wait& wait) {
  if (size_bytes == 0) {
    return Fail(Code::kInvalidArgument, "cannot make a buffer of 0 bytes",
                "request at least 1 byte");
  }
  Result<Attachment*> made = Make(Kind::kCreate, name, size_bytes, options, attach, wait);
  if (made) counters_.Add(protocol::Counter::kCreates);
  return made;
}

Result<Attachment*> Client::Replace(std::string_view name, uint64_t size_bytes,
                                    const MakeOptions& options, bool attach, const Wait& wait) {
  Result<Attachment*> made = Make(Kind::kReplace, name, size_bytes, options, attach, wait);
  if (made) counters_.Add(protocol::Counter::kReplaces);
  return made;
}

Result<GpuUuid> Client::PlaceOf(const SessionLock& lock, Kind kind, std::string_view name,
                                const MakeOptions& options, const Wait& wait) {
  const GpuUuid first{session_.peer(lock).gpu_uuid};
  if (kind == Kind::kReplace) {
    const auto found = session_.registry().Share()->Find(name);
    return found ? GpuUuid{found->record.gpu} : first;  // Otherwise the broker says why.
  }
  if (options.gpu == 0) return first;
  const auto gpus = AskForGpus(lock, wait);
  if (!gpus) return std::unexpected(gpus.error());
  if (options.gpu >= gpus->size()) {
    return Fail(Code::kInvalidArgument,
                Concat("gpu is ", options.gpu, ", but the pod has ", gpus->size(),
                       gpus->size() == 1 ? " GPU" : " GPUs", ", numbered from 0"),
                "use one of these, or give the pod more GPUs with gpushm.io/gpus");
  }
  return GpuUuid{(*gpus)[options.gpu].gpu_uuid};
}

template <typename Request>
Result<Client::Grant> Client::RequestMake(const SessionLock& lock, Kind kind, std::string_view name,
                                          const Request& request, bool attach, const Wait& wait) {
  Grant grant;
  const auto reply = session_.Ask<protocol::MakeReply>(lock, kind, request, wait.answer,
                                                       {.received = &grant.descriptors});
  if (!reply) return std::unexpected(reply.error());
  if ((request.size_bytes != 0 && reply->size_bytes != request.size_bytes) ||
      (reply->lease_id != 0) != attach || (!attach && !grant.descriptors.empty())) {
    session_.Drop(lock);
    return BrokeProtocol(Concat("the grant differs from the request: lease ", reply->lease_id,
                                " with ", reply->size_bytes, " bytes and ",
                                grant.descriptors.size(), " descriptors for ", request.size_bytes,
                                " bytes ", attach ? "with" : "without", " an attachment"));
  }
  grant.record.name = registry::Name(name);
  grant.record.generation = reply->generation;
  grant.record.size_bytes = reply->size_bytes;
  grant.record.mapped_bytes = reply->mapped_bytes;
  grant.record.gpu = reply->gpu_uuid;
  grant.record.gpu_number = reply->gpu;
  grant.record.flags = kind == Kind::kMakePage ? registry::kRecordPage : 0;
  grant.reply.lease_id = reply->lease_id;
  return grant;
}

Result<Attachment*> Client::Make(Kind kind, std::string_view name, uint64_t size_bytes,
                                 const MakeOptions& options, bool attach, const Wait& wait) {
  if (auto valid = CheckMake(name, size_bytes, options, attach); !valid) {
    return std::unexpected(valid.error());
  }
  DoChores(wait.answer);
  const Result<SessionLock> lock = session_.Lock(wait.answer);
  if (!lock) return std::unexpected(lock.error());
  if (auto done = session_.EnsureConnected(*lock, !wait.dont_wait, wait.answer); !done) {
    return std::unexpected(done.error());
  }
  const Result<GpuUuid> place = PlaceOf(*lock, kind, name, options, wait);
  if (!place) return std::unexpected(place.error());
  Result<DeviceInfo> device;
  if (attach) {  // Fails before anything is made if this process cannot map the buffer.
    device = FindDevice(*place);
    if (!device) return std::unexpected(device.error());
  }
  uint32_t flags = (attach ? protocol::kFlagAttach : 0) |
                   (options.unpublished ? protocol::kFlagUnpublished : 0) |
                   (options.until_unused ? protocol::kFlagUntilUnused : 0);
  Result<Grant> grant = Fail(Code::kInternal, "no request was sent");
  if (kind == Kind::kCreate) {
    flags |= (options.writers_all ? protocol::kFlagWritersAll : 0) |
             (options.one_writer ? protocol::kFlagOneWriter : 0) |
             options.gpu << protocol::kFlagGpuShift;
    const protocol::CreateRequest request{
        .name = protocol::ToNameField(name),
        .size_bytes = size_bytes,
        .flags = flags,
        .on_writer_exit = static_cast<uint32_t>(options.on_writer_exit)};
    grant = RequestMake(*lock, kind, name, request, attach, wait);
  } else {
    const protocol::ReplaceRequest request{.name = protocol::ToNameField(name),
                                           .size_bytes = size_bytes,
                                           .flags = flags,
                                           .reserved = 0};
    grant = RequestMake(*lock, kind, name, request, attach, wait);
  }
  if (!grant) return std::unexpected(grant.error());
  if (!attach) return nullptr;
  const GpuUuid made_on{grant->record.gpu};
  if (made_on != *place)
    device = FindDevice(made_on);  // The name moved before the request arrived.
  if (!device) {
    EndLease(*lock, {session_.peer(*lock).serial, grant->reply.lease_id}, wait.answer);
    return std::unexpected(device.error());
  }
  Result<Attachment*> entered = Enter(*lock, Access::kReadWrite, *device, options.unpublished,
                                      std::move(*grant), /*seen=*/nullptr, wait);
  if (!entered && kind == Kind::kCreate && !options.unpublished) {
    // The caller gets no buffer, so the name must become free again.
    const protocol::DeleteRequest request{.name = protocol::ToNameField(name)};
    (void)session_.AskHere<protocol::EmptyReply>(*lock, Kind::kDelete, request, wait.answer);
  }
  return entered;
}

Result<void> Client::Publish(Attachment* attachment, const Wait& wait) {
  DoChores(wait.answer);
  const Result<SessionLock> lock = session_.Lock(wait.answer);
  if (!lock) return std::unexpected(lock.error());
  if (!attachment->unpublished()) {
    return Fail(Code::kInvalidArgument,
                Concat("generation ", attachment->facts().generation, " is already published"),
                "publish each generation only once");
  }
  if (attachment->fill() == Attachment::Fill::kRunning) {
    return Fail(Code::kBusy, "a load into this generation is running",
                "publish it after gpushm_attachment_load has returned");
  }
  if (attachment->fill() == Attachment::Fill::kFailed) {
    return Fail(Code::kInvalidArgument,
                Concat("the last load into generation ", attachment->facts().generation,
                       " failed, so its content is not complete"),
                "load it again, or detach it; gpushm_attachment_set_content declares the bytes "
                "valid as they are");
  }
  for (bool again = false;; again = true) {
    // This call notices a dead broker. If its successor was not told of this generation, it is
    // lost.
    if (auto done = session_.EnsureConnected(*lock, !wait.dont_wait, wait.answer); !done) {
      return done;
    }
    if (attachment->orphaned()) {
      return Fail(Code::kOrphaned, "the broker restarted and does not have this generation",
                  "create the buffer again");
    }
    // A broker that was killed before it answered may have published it: the registry shows that.
    const auto shown = Lookup(attachment->facts().name);
    if (again && shown && shown->record.generation == attachment->facts().generation) break;
    const Lease lease = attachment->lease();
    const protocol::PublishRequest request{.lease_id = lease.id};
    const auto reply = session_.Ask<protocol::EmptyReply>(*lock, Kind::kPublish, request,
                                                          wait.answer, {.serial = lease.serial});
    if (reply) break;
    if (again || reply.error().code() != Code::kUnavailable || wait.answer.Passed()) {
      return std::unexpected(reply.error());
    }
  }
  attachment->Publish();
  (void)attachment->Current();
  const std::lock_guard table(table_mutex_);
  current_.insert_or_assign(Key{attachment->facts().name, attachment->facts().access}, attachment);
  return {};
}

Result<void> Client::Delete(std::string_view name, const Wait& wait) {
  if (auto valid = protocol::CheckName(name, "name"); !valid) return valid;
  DoChores(wait.answer);
  const Result<SessionLock> lock = session_.Lock(wait.answer);
  if (!lock) return std::unexpected(lock.error());
  const protocol::DeleteRequest request{.name = protocol::ToNameField(name)};
  const auto reply = session_.Ask<protocol::EmptyReply>(*lock, Kind::kDelete, request, wait.answer);
  if (!reply) return std::unexpected(reply.error());
  return {};
}

// Making the pages of signals, barriers and rings.

Result<Attachment*> Client::MakePage(std::string_view name, uint64_t size_bytes,
                                     const PageOptions& options, const Wait& wait) {
  if (auto valid = protocol::CheckName(name, "name"); !valid) {
    return std::unexpected(valid.error());
  }
  DoChores(wait.answer);
  const Result<SessionLock> lock = session_.Lock(wait.answer);
  if (!lock) return std::unexpected(lock.error());
  if (auto done = session_.EnsureConnected(*lock, !wait.dont_wait, wait.answer); !done) {
    return std::unexpected(done.error());
  }
  const protocol::MakePageRequest request{
      .name = protocol::ToNameField(name),
      .size_bytes = size_bytes,
      .flags = (options.writers_all ? protocol::kFlagWritersAll : 0) |
               (options.one_writer ? protocol::kFlagOneWriter : 0) |
               (options.until_unused ? protocol::kFlagUntilUnused : 0),
      .reserved = 0,
      .after_generation = options.after_generation};
  Result<Grant> grant = RequestMake(*lock, Kind::kMakePage, name, request, /*attach=*/true, wait);
  if (!grant) return std::unexpected(grant.error());
  return Enter(*lock, Access::kReadWrite, DeviceInfo(), /*unpublished=*/true, std::move(*grant),
               /*seen=*/nullptr, wait);
}

}  // namespace gpushm::client
