#include "runtime/client/client.h"

#include <algorithm>
#include <utility>

namespace gpushm::client {
namespace {

// A last detach must not hang on a sick broker.
constexpr int64_t kCloseMs = 1000;

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
  objects.clear();  // While what they hold is still mapped.
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
  // The process lives on, so the broker sees no end of it: it has to be told. One that was killed
  // comes back with these leases.
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
  return Fail(Code::kNotFound,
              Concat("its GPU ", uuid.ToString(), " is not visible to this process, which sees ",
                     visible.empty() ? "none" : visible),
              "give this container gpushm.io/attach, so that it gets its sidecar's GPU, and do not "
              "hide it by CUDA_VISIBLE_DEVICES");
}

void Client::EndLease(const SessionLock& lock, const Lease& lease, const Deadline& deadline) {
  // With another serial the number is somebody else's.
  if (lease.id == 0) return;
  protocol::DetachRequest request{.lease_id = lease.id};
  const auto reply = session_.AskHere<protocol::EmptyReply>(lock, protocol::Kind::kDetach, request,
                                                            deadline, {.serial = lease.serial});
  if (reply) return;
  const Code code = reply.error().code();
  const bool unsaid = (code == Code::kTimeout && deadline.RemainingNs() == 0) ||
                      (code == Code::kUnavailable && lease.serial == session_.peer(lock).serial);
  // Perhaps it was heard: saying it twice does no harm. A connection that is resumed has the lease.
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

// Resumed, the leases are what they were, unless the link between broker and plugin was down, or a
// grant was on its way when the connection broke: number and sum tell.
void Client::Reconnected(const SessionLock& lock, const Return& how, const Deadline& deadline) {
  std::vector<std::shared_ptr<Attachment>> attachments;
  uint32_t leases = 0;
  uint64_t lease_sum = 0;
  {
    const std::lock_guard table(table_mutex_);
    if (!how.resumed) ended_.clear();  // They ended with their connection, or mean nothing now.
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
    if (!asked) return session_.Drop(lock);  // Done again on the next connection.
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
    if (!session_.connected(lock)) return;  // Done again on the next connection.
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
  // At once: a buffer with one writer would be BUSY for this process itself.
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
        return Fail(Code::kCorrupt, "a peer broke the protocol: holders are out of order");
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
    // The same broker still knows what became of the bytes; another one never had them.
    if (same_broker && !attachment->unpublished()) {
      attachment->Adopt(reader, {serial, 0});
    } else {
      attachment->Orphan();
    }
    return;
  }
  // Its cells go with the former lease.
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
  if (reply->generation != facts.generation || reply->size_bytes != facts.size_bytes) {
    session_.Drop(lock);
    return;
  }
  const Lease lease{serial, reply->lease_id};
  attachment->Adopt(reader, lease);
  if (!IsHeld(attachment)) EndLeaseSoon(lease);
}

}  // namespace gpushm::client
