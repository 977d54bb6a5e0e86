// Newer content at the address of an attachment (attach.h).
#include <utility>

#include "contract/limits.h"
#include "runtime/client/attach.h"
#include "runtime/client/client.h"

namespace gpushm::client {
namespace {

Result<void> WaitForStreams(const CudaApi& api, std::span<const CUstream> streams,
                            const Deadline& deadline) {
  sync::Poll poll(deadline);
  for (const CUstream stream : streams) {
    for (;;) {
      const Result<bool> pending = IsPending(api, stream);
      if (!pending) return std::unexpected(pending.error());
      if (!*pending) break;
      if (poll.Again()) continue;
      return Fail(Code::kTimeout,
                  Concat("work that uses the buffer is pending on stream ",
                         static_cast<const void*>(stream)),
                  "synchronise the stream, or use a larger timeout_ms");
    }
  }
  return {};
}

// Puts the memory of `grant` in place of that of `attachment`.
Result<void> Exchange(const SessionLock& lock, Attachment* attachment, const Grant& grant,
                      const Deadline& deadline) {
  Client* const client = attachment->facts().client;
  Session& session = client->session();
  Attachments& attachments = client->attachments();
  const Lease lease{session.peer(lock).serial, grant.reply.lease_id};
  if (grant.reply.blocks != 0) {
    attachments.EndLease(lock, lease, deadline);
    return Fail(Code::kUnsupported,
                Concat("generation ", grant.record.generation,
                       " was offered from within, or across, allocations"),
                "attach the new generation, then detach this one");
  }
  if (grant.descriptors.size() != 1) {
    session.Drop(lock);
    return Fail(Code::kCorrupt,
                Concat("the broker broke the protocol: lease ", grant.reply.lease_id, " came with ",
                       grant.descriptors.size(), " descriptors"));
  }
  const Attachment::Facts& facts = attachment->facts();
  const auto memory = DeviceMemory::Import(**client->driver().Api(), grant.descriptors[0].get());
  Result<void> done;
  if (!memory) done = std::unexpected(memory.error());
  if (done) {
    done = attachment->device_mapping()->Exchange(*memory, facts.device, facts.access);
  }
  if (!done) {
    attachments.EndLease(lock, lease, deadline);
    return done;
  }
  const Lease former = attachments.Advance(attachment, grant.record.generation, lease);
  (void)attachment->Current();
  attachments.EndLease(lock, former, deadline);
  return {};
}

}  // namespace

// A name can move on between the look-up and the request, as in Attach.
Result<void> Advance(Attachment* attachment, std::span<const CUstream> streams, uint64_t generation,
                     const Wait& wait) {
  const Attachment::Facts& facts = attachment->facts();
  Client* const client = facts.client;
  client->attachments().DoChores(wait.answer);
  client->session().NoticeLoss(wait.answer);
  if (attachment->unpublished()) {
    return Fail(Code::kInvalidArgument, "this attachment's generation is not published yet",
                "publish it first: gpushm_attachment_publish");
  }
  if (attachment->device_mapping() == nullptr || facts.blocks != 0 ||
      facts.peer_way != PeerWay::kNone) {
    return Fail(Code::kUnsupported,
                "only a whole allocation with transport vmm, and without peer GPUs, can be "
                "exchanged",
                "attach the new generation, then detach this one");
  }
  const Result<const CudaApi*> api = client->driver().Api();
  if (!api) return std::unexpected(api.error());
  const Wanted wanted{
      .generation = generation,
      .min_generation = generation,
      .other_generation = "advance to the newest generation: set `generation` to 0"};
  for (int attempt = 1;; ++attempt) {
    const auto seen = Await(client, facts.name, wanted, wait);
    if (!seen) return std::unexpected(seen.error());
    const registry::BufferRecord& record = seen->found.record;
    if (record.generation == facts.generation && !attachment->orphaned()) return {};
    if (record.size_bytes != facts.size_bytes || record.mapped_bytes != facts.mapped_bytes ||
        record.transport != Transport::kVmm || record.gpu != facts.gpu.bytes) {
      return Fail(Code::kInvalidArgument,
                  Concat("generation ", record.generation, " has ", record.size_bytes,
                         " bytes and transport ", registry::TransportName(record.transport),
                         ", but the attached one has ", facts.size_bytes, " bytes, transport vmm"),
                  "attach the new generation, then detach this one");
    }
    if (auto done = WaitForStreams(**api, streams, wait.condition); !done) return done;
    const Result<SessionLock> lock = client->session().Lock(wait.answer);
    if (!lock) return std::unexpected(lock.error());
    const auto grant = AskForLease(client, *lock, record, {.access = facts.access}, wait);
    if (grant) return Exchange(*lock, attachment, *grant, wait.answer);
    const bool moved = grant.error().code() == Code::kStale && generation == 0;
    if (!moved || attempt == limits::kReadAttempts) return std::unexpected(grant.error());
  }
}

}  // namespace gpushm::client
