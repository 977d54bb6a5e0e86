#include "runtime/client/content.h"

#include "runtime/client/client.h"
#include "runtime/client/names.h"

namespace gpushm::client {

using protocol::Kind;

Result<void> SetContent(Attachment* attachment, uint64_t content_bytes, const Wait& wait) {
  const uint64_t size_bytes = attachment->facts().size_bytes;
  if (content_bytes > size_bytes) {
    return Fail(
        Code::kInvalidArgument,
        Concat(content_bytes, " bytes of content do not fit into a buffer of size ", size_bytes));
  }
  if (auto said = ReportContent(*attachment, content_bytes, true, wait); !said) return said;
  attachment->NoteContent(content_bytes);
  attachment->AcceptFill();
  return {};
}

Result<void> ReportContent(const Attachment& attachment, uint64_t loaded_bytes, bool complete,
                           const Wait& wait, const Digest& digest) {
  Session& session = attachment.facts().client->session();
  const Result<SessionLock> lock = session.Lock(wait.answer);
  if (!lock) return std::unexpected(lock.error());
  if (attachment.orphaned()) {
    return Fail(Code::kOrphaned, "the broker restarted and does not have this buffer",
                "load the file again");
  }
  const Lease lease = attachment.lease();
  const protocol::ContentRequest request{.lease_id = lease.id,
                                         .loaded_bytes = loaded_bytes,
                                         .complete = complete ? 1u : 0u,
                                         .reserved = 0,
                                         .digest = digest};
  const auto reply =
      session.Ask<protocol::EmptyReply>(*lock, Kind::kContent, request, wait.answer,
                                        {.loss = Call::Loss::kRepeatable, .serial = lease.serial});
  if (!reply) return std::unexpected(reply.error());
  return {};
}

namespace {

// What another try finds otherwise once somebody has acted, or time has passed: a file that is not
// there or not whole yet, a process that is in the way, or a volume that the system cannot read
// now, such as one whose server is being restarted.
bool Waits(Code code) {
  return code == Code::kNotFound || code == Code::kSystem || code == Code::kLoading ||
         code == Code::kBusy || code == Code::kStale || code == Code::kTimeout ||
         code == Code::kUnavailable;
}

}  // namespace

void StateReason(Client* client, std::string_view name, const Status& why) {
  const auto found = LookupReason(*client, name);
  if (!found || (found->record.state != BufferState::kLoading &&
                 found->record.state != BufferState::kFailed)) {
    return;
  }
  const auto text =
      protocol::ToLineField(Concat(why.what(), why.remedy().empty() ? "" : "; ", why.remedy()));
  const bool fails = !Waits(why.code()) && found->record.state == BufferState::kLoading;
  const bool known = registry::ReasonCode(found->record) == static_cast<uint32_t>(why.code()) &&
                     found->reason == protocol::FromLineField(text);
  if (known && !fails) return;  // As at each look of a load that waits.
  const Deadline deadline = Deadline::AfterMs(kAnswerMs);
  const Result<SessionLock> lock = client->session().Lock(deadline);
  if (!lock) return;
  const protocol::ReasonRequest request{.name = protocol::ToNameField(name),
                                        .code = static_cast<uint32_t>(why.code()),
                                        .failed = Waits(why.code()) ? 0u : 1u,
                                        .text = text};
  (void)client->session().Ask<protocol::EmptyReply>(*lock, Kind::kReason, request, deadline,
                                                    {.loss = Call::Loss::kRepeatable});
}

void GiveContentUp(Attachment* attachment, bool detaches) {
  // The end of the lease tells the broker that nobody completes the content. A detach ends it,
  // unless this process holds the buffer elsewhere, too. Then the lease is ended and renewed here.
  Attachments& attachments = attachment->facts().client->attachments();
  if (detaches && attachments.CountOf(*attachment) == 1) return;
  attachments.Renew(attachment, Deadline::AfterMs(kAnswerMs));
}

Result<void> CheckWhole(const Attachment& attachment) {
  const Attachment::Facts& facts = attachment.facts();
  if (attachment.fill() == Attachment::Fill::kRunning) {
    return Fail(Code::kBusy, "a load into this attachment is running",
                "wait until it has returned");
  }
  const auto found = Lookup(*facts.client, facts.name);
  const bool shown = found && found->record.generation == facts.generation;
  if (shown && found->record.state == BufferState::kLoading) {
    return Fail(Code::kLoading,
                Concat(found->record.loaded_bytes, " of ", facts.size_bytes, " bytes are loaded"),
                "wait for it: gpushm_wait");
  }
  if (attachment.fill() == Attachment::Fill::kFailed ||
      (shown && found->record.state == BufferState::kFailed)) {
    return Fail(Code::kSystem,
                Concat("the last load into generation ", facts.generation, " failed"),
                "load it again");
  }
  return {};
}

}  // namespace gpushm::client
