// Making pages of signals, barriers and rings.
#include <utility>

#include "runtime/client/client.h"

namespace gpushm::client {

using protocol::Kind;

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
  if (session_.peer(*lock).version < protocol::VersionOf(Kind::kMakePage)) {
    return Fail(Code::kUnsupported, "the pod's sidecar is older than signals, barriers and rings",
                "restart the pod: it gets the sidecar of the injector's release");
  }
  const bool until_unused =
      options.until_unused && session_.peer(*lock).version >= protocol::kUntilUnusedVersion;
  const protocol::MakePageRequest request{
      .name = protocol::ToNameField(name),
      .size_bytes = size_bytes,
      .flags = (options.writers_all ? protocol::kFlagWritersAll : 0) |
               (options.one_writer ? protocol::kFlagOneWriter : 0) |
               (until_unused ? protocol::kFlagUntilUnused : 0),
      .reserved = 0,
      .after_generation = options.after_generation};
  Grant grant{};
  const auto reply = session_.Ask<protocol::AttachReply>(
      *lock, Kind::kMakePage, request, wait.answer, {.received = &grant.descriptors});
  if (!reply) return std::unexpected(reply.error());
  grant.reply = *reply;
  if (reply->size_bytes != size_bytes ||
      reply->transport != static_cast<uint32_t>(protocol::Transport::kHost)) {
    session_.Drop(*lock);
    return Fail(Code::kCorrupt, "a peer broke the protocol: a grant is not what was asked for");
  }
  return Enter(*lock, name, Access::kReadWrite, DeviceInfo(), /*unpublished=*/true,
               std::move(grant), /*seen=*/nullptr, wait);
}

}  // namespace gpushm::client
