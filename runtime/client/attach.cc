#include "runtime/client/attach.h"

#include <utility>

#include "contract/limits.h"
#include "runtime/client/client.h"
#include "runtime/client/content.h"

namespace gpushm::client {

using protocol::Kind;
using registry::BufferRecord;

namespace {

// The allocations of a range that lies in several.
Result<void> FetchBlocks(Session* session, const SessionLock& lock, Grant* grant,
                         const Wait& wait) {
  const uint64_t serial = session->peer(lock).serial;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < grant->reply.blocks; ++i) {
    const protocol::BlockRequest request{
        .lease_id = grant->reply.lease_id, .index = i, .reserved = 0};
    std::vector<UniqueFd> received;
    const auto block = session->Ask<protocol::BlockReply>(lock, Kind::kBlock, request, wait.answer,
                                                          {.loss = Call::Loss::kRepeatable,
                                                           .serial = serial,
                                                           .received = &received,
                                                           .grants_lease = false});
    if (!block) return std::unexpected(block.error());
    if (received.size() != 1 || block->mapped_bytes > grant->record.mapped_bytes - bytes) {
      session->Drop(lock);
      return BrokeProtocol(Concat("block ", i, " of ", grant->reply.blocks, " has ",
                                  block->mapped_bytes, " bytes and ", received.size(),
                                  " descriptors, after ", bytes, " of ", grant->record.mapped_bytes,
                                  " bytes"));
    }
    bytes += block->mapped_bytes;
    grant->descriptors.push_back(std::move(received[0]));
    grant->block_bytes.push_back(block->mapped_bytes);
  }
  if (bytes == grant->record.mapped_bytes) return {};
  session->Drop(lock);
  return BrokeProtocol(Concat(grant->reply.blocks, " blocks have ", bytes, " bytes instead of ",
                              grant->record.mapped_bytes));
}

Result<PeerPlan> Plan(Driver* driver, const BufferRecord& record, const DeviceInfo& device,
                      const AttachOptions& options) {
  if (record.transport == Transport::kCuIpc) {
    return Fail(Code::kUnsupported, "peer GPUs cannot map a buffer of transport cuipc",
                "offer it with allow_copy, or allocate it with cuMemCreate");
  }
  const Result<const CudaApi*> api = driver->Api();
  if (!api) return std::unexpected(api.error());
  const Result<std::vector<DeviceInfo>> devices = driver->Devices();
  if (!devices) return std::unexpected(devices.error());
  return PlanPeers(**api, *devices, device, options.peer_devices, options.stage);
}

// The broker forgets the digest when it grants a lease to write. It does not know of an attach to
// what this process holds already.
Result<Attachment*> WithoutDigest(Client* client, Attachment* held, const Wait& wait) {
  const auto found = Lookup(*client, held->facts().name);
  if (!found || found->record.generation != held->facts().generation ||
      found->record.digest.empty()) {
    return held;
  }
  const auto said = ReportContent(*held, held->ContentBytes(), /*complete=*/true, wait);
  if (said) return held;
  (void)client->attachments().Detach(held, {}, /*defer=*/false);
  return std::unexpected(said.error());
}

}  // namespace

Result<Attachment*> Attach(Client* client, std::string_view name, const AttachOptions& options,
                           const Wait& wait) {
  Attachments& attachments = client->attachments();
  Session& session = client->session();
  const auto again = [&](Attachment* held) -> Result<Attachment*> {
    if (options.access == Access::kRead || options.page) return held;
    return WithoutDigest(client, held, wait);
  };
  attachments.DoChores(wait.answer);
  // Before the table is asked, because this may orphan the attachments of a dead broker.
  session.NoticeLoss(wait.answer);
  if (Attachment* const held = attachments.Reuse(name, options)) return again(held);
  if (auto valid = protocol::CheckName(name, "name"); !valid) {
    return std::unexpected(valid.error());
  }
  const Wanted wanted{
      .page = options.page,
      .generation = options.generation,
      .min_generation = options.min_generation,
      // If a buffer failed to load, the broker gives the reason.
      .content = options.any_state ? Wanted::Content::kAny : Wanted::Content::kLoaded,
      .kind = options.kind,
      .called = options.called};
  for (int attempt = 1;; ++attempt) {
    const Result<Seen> seen = Await(client, name, wanted, wait);
    if (!seen) return std::unexpected(seen.error());
    Result<SessionLock> lock = session.Lock(wait.answer);
    if (!lock) return std::unexpected(lock.error());
    // Another thread attached it, or its state changed meanwhile.
    if (Attachment* const held = attachments.Reuse(name, options, &*seen)) {
      lock->unlock();
      return again(held);
    }
    const int64_t begun_ns = MonotonicNs();
    const Result<Grant> grant = AskForLease(client, *lock, seen->found.record, options, wait);
    if (grant) {
      Result<Attachment*> attached =
          Enter(client, *lock, *grant, /*unpublished=*/false, /*share=*/!options.own, wait);
      if (attached && !options.page) client->counters().AddFirstAttach(MonotonicNs() - begun_ns);
      return attached;
    }
    const Code code = grant.error().code();
    // Between the look-up and the request, the name may have moved or the broker restarted.
    const bool moved =
        (code == Code::kStale || code == Code::kNotFound) &&
        (session.registry().Share() != seen->reader || !seen->reader->IsCurrent(seen->found.ref));
    if (!moved || options.generation != 0 || attempt == limits::kReadAttempts) {
      return std::unexpected(grant.error());
    }
  }
}

Result<Grant> AskForLease(Client* client, const SessionLock& lock, const BufferRecord& record,
                          const AttachOptions& options, const Wait& wait) {
  Grant grant{.record = record, .access = options.access};
  if (!grant.is_page()) {  // A process that only waits and signals needs no GPU.
    auto device = client->driver().Find(GpuUuid{record.gpu});
    if (!device) return std::unexpected(device.error());
    grant.device = std::move(*device);
  }
  if (!grant.is_page() && options.peer_devices != 0) {
    auto planned = Plan(&client->driver(), record, grant.device, options);
    if (!planned) return std::unexpected(planned.error());
    grant.peers = std::move(*planned);
  }
  Session& session = client->session();
  protocol::AttachRequest request{};
  request.name = protocol::ToNameField(record.name.view());
  request.access = options.access;
  request.peer_way = grant.peers.way;
  request.generation = record.generation;
  request.gpu_uuid = record.gpu;
  const auto reply = session.Ask<protocol::AttachReply>(
      lock, Kind::kAttach, request, wait.answer,
      {.loss = Call::Loss::kRepeatable, .received = &grant.descriptors});
  if (!reply) return std::unexpected(reply.error());
  grant.reply = *reply;
  if (reply->blocks == 0) return grant;
  if (auto fetched = FetchBlocks(&session, lock, &grant, wait); !fetched) {
    client->attachments().EndLease(lock, {session.peer(lock).serial, reply->lease_id}, wait.answer);
    return std::unexpected(fetched.error());
  }
  return grant;
}

}  // namespace gpushm::client
