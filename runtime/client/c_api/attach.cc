// The C ABI: attachments.
#include <bit>

#include "contract/limits.h"
#include "runtime/client/attach.h"
#include "runtime/client/c_api/support.h"

namespace gc = gpushm::client;
using gpushm::Code;
using gpushm::Concat;
using gpushm::Fail;
using gpushm::Result;

namespace gpushm::client {
namespace {

Result<AttachOptions> ToOptions(const gpushm_attach_options& given) {
  if (given.access > GPUSHM_ACCESS_READ_WRITE) {
    return Fail(Code::kInvalidArgument, Concat("invalid attach_options.access ", given.access),
                "use GPUSHM_ACCESS_READ or GPUSHM_ACCESS_READ_WRITE");
  }
  if ((given.reserved | given.reserved1) != 0) {
    return Fail(Code::kInvalidArgument,
                Concat("attach_options.reserved is ", given.reserved, " and reserved1 is ",
                       given.reserved1, ": both must be 0"),
                "initialise the options with GPUSHM_INIT, and leave these fields 0");
  }
  if (given.stage > 1 || (given.stage == 1 && (given.access == GPUSHM_ACCESS_READ_WRITE ||
                                               std::popcount(given.peer_devices) != 1))) {
    return Fail(Code::kInvalidArgument,
                Concat("attach_options.stage is ", given.stage, ", access is ", given.access,
                       " and peer_devices is 0x", std::hex, given.peer_devices,
                       ": a staged copy needs read access and exactly one peer GPU"),
                "set stage = 1, access = GPUSHM_ACCESS_READ and peer_devices = 1 << ordinal");
  }
  return AttachOptions{.access = ToAccess(given.access),
                       .generation = given.generation,
                       .peer_devices = given.peer_devices,
                       .stage = given.stage == 1};
}

}  // namespace
}  // namespace gpushm::client

extern "C" {

gpushm_status gpushm_attach(gpushm_client* client, const char* name,
                            const gpushm_attach_options* options, gpushm_attachment** attachment) {
  return gc::EnterClient(client, [&](gc::Client& c) -> Result<void> {
    if (name == nullptr || attachment == nullptr) {
      return gc::CheckArgument(false, "name or attachment is NULL");
    }
    *attachment = nullptr;
    const auto given = gc::ReadOptions(options, "attach_options");
    if (!given) return std::unexpected(given.error());
    const auto attaching = gc::ToOptions(*given);
    if (!attaching) return std::unexpected(attaching.error());
    const auto wait = gc::Wait::From(given->timeout_ms, GPUSHM_DEFAULT_TIMEOUT_MS);
    if (!wait) return std::unexpected(wait.error());
    const std::string_view text(name, strnlen(name, gpushm::limits::kNameBytes + 2));
    const auto attached = gc::Attach(&c, text, *attaching, *wait);
    if (!attached) {
      return std::unexpected(attached.error().WithContext(Concat("attach \"", text, "\"")));
    }
    *attachment = gc::ToHandle(*attached);
    return {};
  });
}

uint64_t gpushm_attachment_address(const gpushm_attachment* attachment) {
  const gc::Attachment* const a = gc::FromHandle(attachment);
  return a == nullptr ? 0 : a->facts().address;
}

uint64_t gpushm_attachment_size(const gpushm_attachment* attachment) {
  const gc::Attachment* const a = gc::FromHandle(attachment);
  return a == nullptr ? 0 : a->facts().size_bytes;
}

gpushm_status gpushm_attachment_check(const gpushm_attachment* attachment) {
  const gc::Attachment* const a = gc::FromHandle(attachment);
  if (a == nullptr) return gc::RememberWhyNot(gc::HandleKind::kAttachment, attachment);
  if (a->IsKnownCurrent()) return GPUSHM_OK;
  return gc::Enter([&]() -> Result<void> {
    const std::optional<Code> code = a->Current();
    if (!code) return {};
    const gc::Attachment::Facts& facts = a->facts();
    const std::string which =
        Concat("buffer \"", facts.name, "\", generation ", facts.generation, ": ");
    switch (*code) {
      case Code::kStale:
        return Fail(*code,
                    which +
                        "it was replaced or deleted: "
                        "its name no longer refers to this generation",
                    "attach again, then detach this attachment");
      case Code::kOrphaned:
        return Fail(*code,
                    which +
                        "the broker restarted without these bytes: the mapping "
                        "stays valid, but no other process can attach to them",
                    "attach again, then detach this attachment");
      default:
        return Fail(*code, which + "the registry of the pod's buffers could not be read",
                    "try again");
    }
  });
}

gpushm_status gpushm_attachment_get_info(const gpushm_attachment* attachment,
                                         gpushm_attachment_info* info) {
  const gc::Attachment* const held = gc::FromHandle(attachment);
  if (held == nullptr) return gc::RememberWhyNot(gc::HandleKind::kAttachment, attachment);
  return gc::Enter([&]() -> Result<void> {
    if (info == nullptr) return gc::CheckArgument(false, "info is NULL");
    if (auto valid = gc::CheckStructSize(info->struct_size, "info"); !valid) return valid;
    const gc::Attachment& a = *held;
    const gc::Attachment::Facts& facts = a.facts();
    gpushm_attachment_info filled{};
    gc::CopyText(filled.name, facts.name);
    filled.address = facts.address;
    filled.size_bytes = facts.size_bytes;
    filled.mapped_bytes = facts.mapped_bytes;
    filled.generation = facts.generation;
    filled.lease_id = a.lease().id;
    filled.access = facts.access;
    filled.transport = facts.transport;
    filled.status = a.device_lost() ? GPUSHM_DEVICE_LOST : GPUSHM_OK;
    if (const std::optional<Code> code = a.Current()) filled.status = gc::ToStatus(*code);
    filled.state = a.State();
    filled.device = facts.device;
    filled.peer_devices = facts.peer_devices;
    filled.peer_method = facts.peer_way;
    filled.count = facts.client->attachments().CountOf(a);
    filled.content_bytes = a.ContentBytes();
    gc::WriteInfo(filled, info, info->struct_size);
    return {};
  });
}

gpushm_status gpushm_attachment_detach(gpushm_attachment* attachment,
                                       const gpushm_detach_options* options) {
  if (attachment == nullptr) return GPUSHM_OK;
  gc::Attachment* const a = gc::FromHandle(attachment);
  if (a == nullptr) return gc::RememberWhyNot(gc::HandleKind::kAttachment, attachment);
  return gc::Enter(a->facts().client, [&]() -> Result<void> {
    const auto given = gc::ReadOptions(options, "detach_options");
    if (!given) return std::unexpected(given.error());
    if (given->defer > 1 || given->reserved != 0 ||
        (given->streams == nullptr && given->stream_count != 0)) {
      return Fail(
          Code::kInvalidArgument,
          Concat("detach_options: defer is ", given->defer, ", reserved is ", given->reserved,
                 ", streams is ", given->streams == nullptr ? "NULL" : "not NULL",
                 " and stream_count is ", given->stream_count),
          "set defer to 0 or 1 and reserved to 0; "
          "streams must not be NULL unless stream_count is 0");
    }
    const std::vector<CUstream> streams = gc::ToStreams(given->streams, given->stream_count);
    return a->facts().client->attachments().Detach(a, streams, given->defer != 0);
  });
}

gpushm_status gpushm_attachment_advance(gpushm_attachment* attachment,
                                        const gpushm_advance_options* options) {
  gc::Attachment* const a = gc::FromHandle(attachment);
  if (a == nullptr) return gc::RememberWhyNot(gc::HandleKind::kAttachment, attachment);
  gc::Client* const client = a->facts().client;
  return gc::Enter(client, [&]() -> Result<void> {
    const auto given = gc::ReadOptions(options, "advance_options");
    if (!given) return std::unexpected(given.error());
    if (given->streams == nullptr && given->stream_count != 0) {
      return Fail(
          Code::kInvalidArgument,
          Concat("advance_options: streams is NULL, but stream_count is ", given->stream_count),
          "streams must not be NULL unless stream_count is 0");
    }
    const auto wait = gc::Wait::From(given->timeout_ms, GPUSHM_DEFAULT_TIMEOUT_MS);
    if (!wait) return std::unexpected(wait.error());
    const std::string name = a->facts().name;
    auto done = gc::Advance(a, gc::ToStreams(given->streams, given->stream_count),
                            given->generation, *wait);
    if (done) return done;
    return std::unexpected(done.error().WithContext(Concat("advance \"", name, '"')));
  });
}

}  // extern "C"
