// Attaching and detaching.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "contract/limits.h"
#include "runtime/client/client.h"

namespace gpushm::client {

using protocol::Kind;
using registry::BufferRecord;
using registry::BufferState;

namespace {

// How long a last detach waits for other threads and the broker before it leaves the rest for
// later.
constexpr int64_t kDetachMs = 1000;

std::unexpected<Status> BadGrant(std::string_view rule) {
  return Fail(Code::kCorrupt, Concat("a peer broke the protocol: ", rule),
              "library and sidecar should come from one release; see the sidecar's log");
}

// Whether an attachment of the right name and access is one that `options` asks for.
bool Serves(const Attachment& held, const AttachOptions& options) {
  const uint64_t others = options.peers.devices & ~BitOf(held.facts().device);
  return (held.page() != nullptr) == options.page && (others & ~held.facts().peer_devices) == 0;
}

}  // namespace

Attachment* Client::Cached(std::string_view name, const AttachOptions& options) {
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
  DoChores(wait.answer);
  // Before the cache: a dead broker's attachment may be orphaned by this.
  session_.NoticeLoss(wait.answer);
  if (Attachment* const held = Cached(name, options)) return held;
  if (auto valid = protocol::CheckName(name, "name"); !valid) {
    return std::unexpected(valid.error());
  }
  const Judge judge = [&](const BufferRecord& record) -> Verdict {
    const bool is_page = (record.flags & registry::kRecordPage) != 0;
    if (is_page != options.page) {
      return {
          Verdict::Kind::kFinal,
          Status(Code::kInvalidArgument,
                 Concat('"', name, is_page ? "\" is a signal, barrier or ring" : "\" is a buffer",
                        ", not a ", options.kind),
                 is_page ? "open it as what it is: gpushm_signal_open, gpushm_ring_open ..."
                         : "take another name, or gpushm_attach")};
    }
    if (record.generation < options.min_generation) {
      return {Verdict::Kind::kNotYet,
              Status(Code::kNotFound, "its writer has ended, and no other has come")};
    }
    if (options.generation != 0 && record.generation != options.generation) {
      return {Verdict::Kind::kFinal,
              Status(Code::kStale,
                     Concat("its generation is ", record.generation, ", not ", options.generation),
                     "look it up again")};
    }
    // Of a buffer that failed to load the broker says why.
    return options.any_state ? Verdict{} : HasContent(record);
  };
  for (int attempt = 1;; ++attempt) {
    const Result<Seen> seen = Await(name, judge, wait, {options.kind, options.called});
    if (!seen) return std::unexpected(seen.error());
    const Result<SessionLock> lock = session_.Lock(wait.answer);
    if (!lock) return std::unexpected(lock.error());
    {
      // Held already: by another thread's attach, or in a state that changed meanwhile.
      const std::lock_guard table(table_mutex_);
      const auto entry = current_.find(KeyView{name, options.access});
      if (entry != current_.end() && !entry->second->orphaned() &&
          entry->second->facts().generation == seen->found.record.generation &&
          Serves(*entry->second, options)) {
        entry->second->NoteSeen(seen->reader, seen->found);
        ++entry->second->count;
        if (!options.page) counters_.Add(protocol::Counter::kCachedAttaches);
        return entry->second;
      }
    }
    const int64_t begun_ns = MonotonicNs();
    Result<Attachment*> attached = AttachNew(*lock, name, options, *seen, wait);
    if (attached && !options.page) counters_.AddFirstAttach(MonotonicNs() - begun_ns);
    if (attached) return attached;
    const Code code = attached.error().code();
    // The name may have moved between the look-up and the request, or the broker have restarted.
    const bool moved =
        (code == Code::kStale || code == Code::kNotFound) &&
        (session_.registry().Share() != seen->reader || !seen->reader->IsCurrent(seen->found.ref));
    if (!moved || options.generation != 0 || attempt == limits::kReadAttempts) return attached;
  }
}

Result<Attachment*> Client::AttachNew(const SessionLock& lock, std::string_view name,
                                      const AttachOptions& options, const Seen& seen,
                                      const Wait& wait) {
  const BufferRecord& record = seen.found.record;
  if (seen.reader->device_lost()) {
    return Fail(Code::kDeviceLost, "its GPU is lost", "the GPU must be reset or the node drained");
  }
  // Whoever only waits and signals needs no GPU.
  const bool is_page = (record.flags & registry::kRecordPage) != 0;
  const Result<DeviceInfo> device = is_page ? DeviceInfo() : FindDevice(GpuUuid{record.gpu});
  if (!device) return std::unexpected(device.error());
  PeerPlan peers;
  if (!is_page && options.peers.devices != 0) {
    auto planned = Plan(record, *device, options.peers);
    if (!planned) return std::unexpected(planned.error());
    peers = std::move(*planned);
  }
  protocol::AttachRequest request{};
  request.name = protocol::ToNameField(name);
  request.access = static_cast<uint32_t>(options.access);
  if (session_.peer(lock).version >= protocol::kPeerWaysVersion) {
    request.peer_way = static_cast<uint32_t>(peers.way);
  }
  request.generation = record.generation;
  request.gpu_uuid = record.gpu;
  Grant grant{};
  const auto reply = session_.Ask<protocol::AttachReply>(
      lock, Kind::kAttach, request, wait.answer,
      {.loss = Call::Loss::kRepeatable, .received = &grant.descriptors});
  if (!reply) return std::unexpected(reply.error());
  grant.reply = *reply;
  const bool as_recorded =
      reply->generation == record.generation && reply->size_bytes == record.size_bytes &&
      reply->mapped_bytes == record.mapped_bytes &&
      reply->transport == (is_page ? static_cast<uint32_t>(protocol::Transport::kHost)
                                   : static_cast<uint32_t>(record.transport));
  if (!as_recorded) {
    session_.Drop(lock);
    return BadGrant("a grant is not what the registry says");
  }
  return Enter(lock, name, options.access, *device, /*unpublished=*/false, std::move(grant), &seen,
               wait, peers);
}

Result<PeerPlan> Client::Plan(const BufferRecord& record, const DeviceInfo& device,
                              const PeerOptions& options) {
  if (record.transport == registry::Transport::kCuIpc) {
    return Fail(Code::kUnsupported, "a buffer of transport cuipc is for its own GPU",
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
  if (grant.reply.transport == static_cast<uint32_t>(protocol::Transport::kHost)) {
    auto page = PageMapping::Map(grant.descriptors[0], grant.reply.mapped_bytes,
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
  if (grant.reply.transport == static_cast<uint32_t>(protocol::Transport::kVmm)) {
    const Result<DeviceMemory> memory = DeviceMemory::Import(**api, grant.descriptors[0].get());
    if (!memory) return std::unexpected(memory.error());
    Result<DeviceMapping> mapping = DeviceMapping::Map(**api, *memory, grant.reply.mapped_bytes,
                                                       device.device, access, peers.mapped);
    if (mapping && peers.staged) {
      mapping = StageCopy(**api, *mapping, device.device, *peers.staged, deadline);
    }
    if (!mapping) return std::unexpected(mapping.error());
    *address = mapping->address();
    return Attachment::Memory(std::move(*mapping));
  }
  if (grant.reply.offerer_pid == getpid()) {
    return Fail(Code::kUnsupported,
                Concat("CUDA refuses to open it: the process that offered it and this one both "
                       "have PID ",
                       getpid(), " in their containers"),
                "offer it with allow_copy, allocate it with cuMemCreate, or let one of the two "
                "containers start its program by a shell, so that it gets another PID");
  }
  Result<IpcMapping> mapping = IpcMapping::Open(**api, grant.reply.cuipc_handle);
  if (!mapping) return std::unexpected(mapping.error());
  *address = mapping->base() + grant.reply.cuipc_offset;
  return Attachment::Memory(std::move(*mapping));
}

Result<Attachment*> Client::Enter(const SessionLock& lock, std::string_view name, Access access,
                                  const DeviceInfo& device, bool unpublished, Grant grant,
                                  const Seen* seen, const Wait& wait, const PeerPlan& peers) {
  const protocol::AttachReply& reply = grant.reply;
  const bool is_cuipc = reply.transport == static_cast<uint32_t>(protocol::Transport::kCuIpc);
  const char* broken = nullptr;
  if (reply.lease_id == 0) broken = "a grant without a lease";
  if (reply.generation == 0) broken = "a grant without a generation";
  if (reply.access != static_cast<uint32_t>(access)) broken = "a grant of another access";
  if (grant.descriptors.size() != (is_cuipc ? 0u : 1u)) broken = "a grant with wrong descriptors";
  if (is_cuipc && reply.cuipc_offset > reply.mapped_bytes - reply.size_bytes) {
    broken = "a grant beyond its allocation";
  }
  if (broken != nullptr) {
    session_.Drop(lock);
    return BadGrant(broken);
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
                        .name = std::string(name),
                        .access = access,
                        .generation = reply.generation,
                        .size_bytes = reply.size_bytes,
                        .mapped_bytes = reply.mapped_bytes,
                        .transport = static_cast<protocol::Transport>(reply.transport),
                        .device = peers.staged.value_or(device.device),
                        .gpu = device.uuid,
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
  // A copy is for who asked for it.
  if (!unpublished && !peers.staged) {
    current_.insert_or_assign(Key{std::string(name), access}, attachment.get());
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
        return Fail(Code::kBusy, "work is pending on a stream that uses the buffer",
                    "synchronise the stream, or detach with defer");
      }
      Result<StreamFence> fence = StreamFence::Record(**api, stream);
      if (!fence) return std::unexpected(fence.error());
      fences.push_back(std::move(*fence));
    }
  }
  // The session's lock first: a new attach of this process must not overtake the end of the lease
  // of a buffer with one writer.
  const Deadline deadline = Deadline::AfterMs(kDetachMs);
  std::shared_ptr<Attachment> last;
  {
    const std::lock_guard table(table_mutex_);
    if (closing_) return {};  // Of an object that the client ends.
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
    if (node.empty()) return Fail(Code::kInvalidArgument, "this is no attachment");
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
    // Without the lock the lease may be renewed at this moment: Renew looks again afterwards.
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

}  // namespace gpushm::client
