// Creating, replacing, publishing and deleting.
#include <utility>

#include "contract/limits.h"
#include "runtime/client/client.h"

namespace gpushm::client {

using protocol::Kind;

namespace {

Result<void> CheckMake(std::string_view name, uint64_t size_bytes, const MakeOptions& options,
                       bool attach) {
  if (auto valid = protocol::CheckName(name, "name"); !valid) return valid;
  if (size_bytes > limits::kBufferBytes) {
    return Fail(Code::kInvalidArgument, Concat("a buffer of ", size_bytes, " bytes"),
                Concat("at most ", limits::kBufferBytes, " bytes are possible"));
  }
  if (options.unpublished && !attach) {
    return Fail(Code::kInvalidArgument, "an unpublished buffer needs somebody who attaches it",
                "ask for the attachment, or do not set `unpublished`");
  }
  return {};
}

}  // namespace

Result<Attachment*> Client::Create(std::string_view name, uint64_t size_bytes,
                                   const MakeOptions& options, bool attach, const Wait& wait) {
  if (size_bytes == 0) {
    return Fail(Code::kInvalidArgument, "a buffer of 0 bytes", "ask for at least 1 byte");
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
  DeviceInfo device;
  if (attach) {  // Before anything is made: a process that cannot map it leaves nothing behind.
    Result<DeviceInfo> found = FindDevice(GpuUuid{session_.peer(*lock).gpu_uuid});
    if (!found) return std::unexpected(found.error());
    device = std::move(*found);
  }
  uint32_t flags =
      (attach ? protocol::kFlagAttach : 0) | (options.unpublished ? protocol::kFlagUnpublished : 0);
  if (options.until_unused && session_.peer(*lock).version >= protocol::kUntilUnusedVersion) {
    flags |= protocol::kFlagUntilUnused;
  }
  Grant grant{};
  const Call call{.received = &grant.descriptors};
  Result<protocol::AttachReply> reply = Fail(Code::kInternal, "no request");
  if (kind == Kind::kCreate) {
    flags |= (options.writers_all ? protocol::kFlagWritersAll : 0) |
             (options.one_writer ? protocol::kFlagOneWriter : 0);
    const protocol::CreateRequest request{
        .name = protocol::ToNameField(name),
        .size_bytes = size_bytes,
        .flags = flags,
        .on_writer_exit = static_cast<uint32_t>(options.on_writer_exit)};
    reply = session_.Ask<protocol::AttachReply>(*lock, kind, request, wait.answer, call);
  } else {
    const protocol::ReplaceRequest request{.name = protocol::ToNameField(name),
                                           .size_bytes = size_bytes,
                                           .flags = flags,
                                           .reserved = 0};
    reply = session_.Ask<protocol::AttachReply>(*lock, kind, request, wait.answer, call);
  }
  if (!reply) return std::unexpected(reply.error());
  grant.reply = *reply;
  if ((size_bytes != 0 && reply->size_bytes != size_bytes) ||
      (!attach && !grant.descriptors.empty())) {
    session_.Drop(*lock);
    return Fail(Code::kCorrupt, "a peer broke the protocol: a grant is not what was asked for");
  }
  if (!attach) return nullptr;
  Result<Attachment*> entered = Enter(*lock, name, Access::kReadWrite, device, options.unpublished,
                                      std::move(grant), /*seen=*/nullptr, wait);
  if (!entered && kind == Kind::kCreate && !options.unpublished) {
    // The caller has no buffer, so the name shall be free again.
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
    return Fail(Code::kInvalidArgument, "it is published already");
  }
  for (bool again = false;; again = true) {
    // Notices a dead broker. Where its successor was not told what it held, that is lost.
    if (auto done = session_.EnsureConnected(*lock, !wait.dont_wait, wait.answer); !done) {
      return done;
    }
    if (attachment->orphaned()) {
      return Fail(Code::kOrphaned, "the broker that it was made with is gone",
                  "make the buffer again");
    }
    // A broker that was killed before it answered may have done it: the registry tells.
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

}  // namespace gpushm::client
