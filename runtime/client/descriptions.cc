// Describing what the bytes of a buffer are, and reading it.
#include "contract/limits.h"
#include "platform/base/sealed_memory.h"
#include "runtime/client/client.h"
#include "runtime/client/description.h"
#include "runtime/client/names.h"

namespace gpushm::client {

using protocol::Kind;

Result<void> SetDescription(const Attachment& attachment, std::span<const std::byte> bytes,
                            const Wait& wait) {
  if (bytes.empty() || bytes.size() > limits::kDescriptionBytes) {
    return Fail(Code::kInvalidArgument,
                Concat("size_bytes: a description has 1 to ", limits::kDescriptionBytes,
                       " bytes, not ", bytes.size()),
                "put what is larger into a file or a buffer, and its name into the description");
  }
  const Result<UniqueFd> memory = SealBytes("description", bytes);
  if (!memory) return std::unexpected(memory.error());
  return SendDescription(attachment, *memory, bytes.size(), wait);
}

Result<void> SendDescription(const Attachment& attachment, const UniqueFd& memory,
                             uint64_t size_bytes, const Wait& wait) {
  Session& session = attachment.facts().client->session();
  const Result<SessionLock> lock = session.LockConnected(wait);
  if (!lock) return std::unexpected(lock.error());
  if (attachment.orphaned()) {
    return Fail(Code::kOrphaned, "the broker restarted and does not have this buffer",
                "create the buffer again");
  }
  const Lease lease = attachment.lease();
  const protocol::DescribeRequest request{.lease_id = lease.id, .size_bytes = size_bytes};
  const std::array descriptors{memory.get()};
  const auto reply =
      session.Ask<protocol::EmptyReply>(*lock, Kind::kDescribe, request, wait.answer,
                                        {.serial = lease.serial, .descriptors = descriptors});
  if (!reply) return std::unexpected(reply.error());
  return {};
}

Result<std::unique_ptr<Description>> Describe(Client* client, std::string_view name,
                                              uint64_t generation, const Wait& wait,
                                              bool required) {
  if (auto valid = protocol::CheckName(name, "name"); !valid) {
    return std::unexpected(valid.error());
  }
  client->attachments().DoChores(wait.answer);
  // An exact generation may be an older one, also of a name that is gone: the broker knows.
  const auto found = Lookup(*client, name);
  if (generation == 0 || (found && found->record.generation == generation)) {
    const auto seen = Await(client, name, {.generation = generation, .described = required}, wait);
    if (!seen && seen.error().code() != Code::kStale) return std::unexpected(seen.error());
  }
  Session& session = client->session();
  const Result<SessionLock> lock = session.LockConnected(wait);
  if (!lock) return std::unexpected(lock.error());
  const protocol::DescriptionRequest request{.name = protocol::ToNameField(name),
                                             .generation = generation};
  std::vector<UniqueFd> received;
  const auto reply = session.Ask<protocol::DescriptionReply>(
      *lock, Kind::kDescription, request, wait.answer,
      {.loss = Call::Loss::kRepeatable, .received = &received});
  if (!reply) return std::unexpected(reply.error());
  Mapping mapping;
  Result<void> valid;
  if (received.size() != (reply->size_bytes == 0 ? 0u : 1u)) {
    valid = Fail(Code::kCorrupt,
                 Concat("the broker broke the protocol: a description of ", reply->size_bytes,
                        " bytes came with ", received.size(), " descriptors"));
  } else if (!received.empty()) {
    Result<Mapping> mapped = MapSealed(received[0], "description", reply->size_bytes,
                                       reply->size_bytes, Writers::kNobody);
    if (mapped) {
      mapping = std::move(*mapped);
    } else {
      valid = std::unexpected(mapped.error());
    }
  }
  if (!valid) {
    session.Drop(*lock);
    return std::unexpected(valid.error());
  }
  return std::make_unique<Description>(std::string(name), reply->generation, std::move(mapping));
}

}  // namespace gpushm::client
