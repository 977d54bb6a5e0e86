#include "runtime/client/make.h"

#include <utility>

#include "contract/limits.h"
#include "runtime/client/attach.h"
#include "runtime/client/client.h"

namespace gpushm::client {

using protocol::Kind;

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

// The GPU of a new buffer or generation.
Result<GpuUuid> PlaceOf(Session* session, const SessionLock& lock, Kind kind, std::string_view name,
                        const MakeOptions& options, const Wait& wait) {
  const GpuUuid first{session->peer(lock).gpu_uuid};
  if (kind == Kind::kReplace) {
    const auto found = session->registry().Share()->Find(name);
    return found ? GpuUuid{found->record.gpu} : first;  // Otherwise the broker says why.
  }
  if (options.gpu == 0) return first;
  const auto gpus = AskForGpus(session, lock, wait);
  if (!gpus) return std::unexpected(gpus.error());
  if (options.gpu >= gpus->size()) {
    return Fail(Code::kInvalidArgument,
                Concat("gpu is ", options.gpu, ", but the pod has ", gpus->size(),
                       gpus->size() == 1 ? " GPU" : " GPUs", ", numbered from 0"),
                "use one of these, or give the pod more GPUs with gpushm.io/gpus");
  }
  return GpuUuid{(*gpus)[options.gpu].gpu_uuid};
}

uint32_t FlagsOf(const MakeOptions& options) {
  return (options.writers_all ? protocol::kFlagWritersAll : 0) |
         (options.one_writer ? protocol::kFlagOneWriter : 0) |
         (options.until_unused ? protocol::kFlagUntilUnused : 0);
}

// Sends the request, and checks that it is what was wanted.
template <typename Request>
Result<Grant> RequestMake(Session* session, const SessionLock& lock, Kind kind,
                          std::string_view name, const Request& request, bool attach,
                          const Wait& wait) {
  Grant grant;
  const auto reply = session->Ask<protocol::MakeReply>(lock, kind, request, wait.answer,
                                                       {.received = &grant.descriptors});
  if (!reply) return std::unexpected(reply.error());
  if ((request.size_bytes != 0 && reply->size_bytes != request.size_bytes) ||
      (reply->lease_id != 0) != attach || (!attach && !grant.descriptors.empty())) {
    session->Drop(lock);
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

}  // namespace

Result<Attachment*> Create(Client* client, std::string_view name, uint64_t size_bytes,
                           const MakeOptions& options, bool attach, const Wait& wait) {
  if (size_bytes == 0) {
    return Fail(Code::kInvalidArgument, "cannot make a buffer of 0 bytes",
                "request at least 1 byte");
  }
  Result<Attachment*> made = Make(client, Kind::kCreate, name, size_bytes, options, attach, wait);
  if (made) client->counters().Add(protocol::Counter::kCreates);
  return made;
}

Result<Attachment*> Replace(Client* client, std::string_view name, uint64_t size_bytes,
                            const MakeOptions& options, bool attach, const Wait& wait) {
  Result<Attachment*> made = Make(client, Kind::kReplace, name, size_bytes, options, attach, wait);
  if (made) client->counters().Add(protocol::Counter::kReplaces);
  return made;
}

Result<Attachment*> Make(Client* client, Kind kind, std::string_view name, uint64_t size_bytes,
                         const MakeOptions& options, bool attach, const Wait& wait) {
  if (auto valid = CheckMake(name, size_bytes, options, attach); !valid) {
    return std::unexpected(valid.error());
  }
  client->attachments().DoChores(wait.answer);
  Session& session = client->session();
  const Result<SessionLock> lock = session.LockConnected(wait);
  if (!lock) return std::unexpected(lock.error());
  const Result<GpuUuid> place = PlaceOf(&session, *lock, kind, name, options, wait);
  if (!place) return std::unexpected(place.error());
  Result<DeviceInfo> device;
  if (attach) {  // Fails before anything is made if this process cannot map the buffer.
    device = client->driver().Find(*place);
    if (!device) return std::unexpected(device.error());
  }
  const uint32_t flags =
      (attach ? protocol::kFlagAttach : 0) | (options.unpublished ? protocol::kFlagUnpublished : 0);
  Result<Grant> grant = Fail(Code::kInternal, "no request was sent");
  if (kind == Kind::kCreate) {
    const protocol::CreateRequest request{
        .name = protocol::ToNameField(name),
        .size_bytes = size_bytes,
        .flags = flags | FlagsOf(options) | options.gpu << protocol::kFlagGpuShift,
        .on_writer_exit = options.on_writer_exit};
    grant = RequestMake(&session, *lock, kind, name, request, attach, wait);
  } else {
    const protocol::ReplaceRequest request{
        .name = protocol::ToNameField(name),
        .size_bytes = size_bytes,
        .flags = flags | (options.until_unused ? protocol::kFlagUntilUnused : 0),
        .reserved = 0};
    grant = RequestMake(&session, *lock, kind, name, request, attach, wait);
  }
  if (!grant) return std::unexpected(grant.error());
  if (!attach) return nullptr;
  // The name may have moved before the request arrived.
  if (const GpuUuid made_on{grant->record.gpu}; made_on != *place) {
    device = client->driver().Find(made_on);
  }
  if (!device) {
    client->attachments().EndLease(*lock, {session.peer(*lock).serial, grant->reply.lease_id},
                                   wait.answer);
    return std::unexpected(device.error());
  }
  grant->device = std::move(*device);
  Result<Attachment*> entered =
      Enter(client, *lock, *grant, options.unpublished, /*share=*/true, wait);
  if (!entered && kind == Kind::kCreate && !options.unpublished) {
    // The caller gets no buffer, so the name must become free again.
    const protocol::DeleteRequest request{.name = protocol::ToNameField(name)};
    (void)session.AskHere<protocol::EmptyReply>(*lock, Kind::kDelete, request, wait.answer);
  }
  return entered;
}

Result<Attachment*> MakePage(Client* client, std::string_view name, uint64_t size_bytes,
                             const MakeOptions& options, const Wait& wait) {
  if (auto valid = protocol::CheckName(name, "name"); !valid) {
    return std::unexpected(valid.error());
  }
  client->attachments().DoChores(wait.answer);
  const Result<SessionLock> lock = client->session().LockConnected(wait);
  if (!lock) return std::unexpected(lock.error());
  const protocol::MakePageRequest request{.name = protocol::ToNameField(name),
                                          .size_bytes = size_bytes,
                                          .flags = FlagsOf(options),
                                          .reserved = 0,
                                          .after_generation = options.after_generation};
  Result<Grant> grant = RequestMake(&client->session(), *lock, Kind::kMakePage, name, request,
                                    /*attach=*/true, wait);
  if (!grant) return std::unexpected(grant.error());
  return Enter(client, *lock, *grant, /*unpublished=*/true, /*share=*/true, wait);
}

Result<void> Publish(Attachment* attachment, const Wait& wait) {
  const Attachment::Facts& facts = attachment->facts();
  Session& session = facts.client->session();
  facts.client->attachments().DoChores(wait.answer);
  const Result<SessionLock> lock = session.Lock(wait.answer);
  if (!lock) return std::unexpected(lock.error());
  if (!attachment->unpublished()) {
    return Fail(Code::kInvalidArgument,
                Concat("generation ", facts.generation, " is already published"),
                "publish each generation only once");
  }
  if (attachment->fill() == Attachment::Fill::kRunning) {
    return Fail(Code::kBusy, "a load into this generation is running",
                "publish it after gpushm_attachment_load has returned");
  }
  if (attachment->fill() == Attachment::Fill::kFailed) {
    return Fail(Code::kInvalidArgument,
                Concat("the last load into generation ", facts.generation,
                       " failed, so its content is not complete"),
                "load it again, or detach it; gpushm_attachment_set_content declares the bytes "
                "valid as they are");
  }
  for (bool again = false;; again = true) {
    // This call notices a dead broker. If its successor was not told of this generation, it is
    // lost.
    if (auto done = session.EnsureConnected(*lock, !wait.dont_wait, wait.answer); !done) {
      return done;
    }
    if (attachment->orphaned()) {
      return Fail(Code::kOrphaned, "the broker restarted and does not have this generation",
                  "create the buffer again");
    }
    // A broker that was killed before it answered may have published it: the registry shows that.
    const auto shown = Lookup(*facts.client, facts.name);
    if (again && shown && shown->record.generation == facts.generation) break;
    const Lease lease = attachment->lease();
    const protocol::PublishRequest request{.lease_id = lease.id};
    const auto reply = session.Ask<protocol::EmptyReply>(*lock, Kind::kPublish, request,
                                                         wait.answer, {.serial = lease.serial});
    if (reply) break;
    if (again || reply.error().code() != Code::kUnavailable || wait.answer.Passed()) {
      return std::unexpected(reply.error());
    }
  }
  attachment->Publish();
  (void)attachment->Current();
  facts.client->attachments().Share(attachment);
  return {};
}

Result<void> Delete(Client* client, std::string_view name, const Wait& wait) {
  if (auto valid = protocol::CheckName(name, "name"); !valid) return valid;
  client->attachments().DoChores(wait.answer);
  const Result<SessionLock> lock = client->session().Lock(wait.answer);
  if (!lock) return std::unexpected(lock.error());
  const protocol::DeleteRequest request{.name = protocol::ToNameField(name)};
  const auto reply =
      client->session().Ask<protocol::EmptyReply>(*lock, Kind::kDelete, request, wait.answer);
  if (!reply) return std::unexpected(reply.error());
  return {};
}

}  // namespace gpushm::client
