#include "contract/protocol/messages.h"

#include <algorithm>

#include "contract/limits.h"
#include "contract/protocol/counters.h"
#include "contract/protocol/rules.h"

namespace gpushm::protocol {

Result<void> CheckName(std::string_view name, std::string_view field) {
  if (IsDnsLabel(name)) return {};
  return Fail(Code::kInvalidArgument,
              Concat(field, " \"", name.substr(0, 80), "\" is not a DNS label"),
              "use 1 to 63 of a-z, 0-9 and '-', neither first nor last a '-', as in \"weights\"");
}

NameField ToNameField(std::string_view name) {
  NameField field{};
  std::copy_n(name.begin(), std::min(name.size(), field.size() - 1), field.begin());
  return field;
}

std::string_view FromNameField(const NameField& field) {
  return {field.data(), strnlen(field.data(), field.size())};
}

size_t EncodeError(Kind kind, uint64_t request_id, const Status& status, Buffer* out) {
  ErrorBody body{};
  body.sys_errno = status.sys_errno();
  status.what().copy(body.what.data(), body.what.size() - 1);
  status.remedy().copy(body.remedy.data(), body.remedy.size() - 1);
  return Encode(kind, true, request_id, static_cast<uint32_t>(status.code()), body, out);
}

Result<Header> ParseHeader(std::span<const std::byte> message) {
  if (message.size() < sizeof(Header)) return Broken("a message is shorter than its header");
  Header header;
  std::memcpy(&header, message.data(), sizeof header);
  if (header.magic != kMagic) return Broken("a message has a bad magic number (must be GSHM)");
  if (header.version < kMinVersion || header.version > kMaxVersion) {
    return Fail(Code::kIncompatible,
                Concat("the peer uses protocol version ", header.version,
                       ", but this side supports ", kMinVersion, " to ", kMaxVersion),
                "use the library that this node's plugin mounts");
  }
  if (header.size_bytes != message.size())
    return Broken("a message's size differs from its header");
  const uint16_t kind = header.kind & static_cast<uint16_t>(~kReplyBit);
  if (kind == 0 || kind > kMaxKind) return Broken("a message has an unknown kind");
  if (header.status > static_cast<uint32_t>(kMaxCode))
    return Broken("a message has an unknown status");
  return header;
}

Result<Status> ParseError(std::span<const std::byte> message) {
  const Result<Header> header = ParseHeader(message);
  if (!header) return std::unexpected(header.error());
  const Result<ErrorBody> body = Parse<ErrorBody>(message);
  if (!body) return std::unexpected(body.error());
  if (header->status == 0) return Broken("an error reply has status 0");
  return Status(static_cast<Code>(header->status), body->what.data(), body->remedy.data(),
                body->sys_errno);
}

template <>
Result<void> Validate(const HelloRequest& m) {
  return Require({{m.reserved == 0, "reserved bytes are not zero"},
                  {m.min_version <= m.max_version, "hello: min_version is above max_version"},
                  {IsTerminated(m.library), "hello: library is not NUL-terminated"},
                  {(m.resume_client_id == 0) == (m.resume_token == ResumeToken{}),
                   "hello: resume_client_id and resume_token must both be set or both be zero"}});
}
template <>
Result<void> Validate(const HelloReply& m) {
  return Require({{m.reserved0 == 0, "reserved bytes are not zero"},
                  {m.client_id != 0, "hello: client_id is 0"},
                  {m.token != ResumeToken{}, "hello: token is zero"},
                  {m.resumed <= 1, "hello: resumed is not 0 or 1"},
                  {m.leases <= limits::kLeases, "hello: too many leases"},
                  {m.resumed == 1 || (m.leases == 0 && m.lease_sum == 0),
                   "hello: a new client cannot have leases"},
                  {m.simulated <= 1, "hello: simulated is not 0 or 1"},
                  {IsName(m.container), "hello: container is not a DNS label"}});
}
template <>
Result<void> Validate(const AttachRequest& m) {
  return Require({{IsName(m.name), "attach: name is not a DNS label"},
                  {IsAccess(m.access), "attach: unknown access"},
                  {IsPeerWay(m.peer_way), "attach: unknown peer_way"}});
}
template <>
Result<void> Validate(const AttachReply& m) {
  return Require(
      {{IsAccess(m.access), "attach: unknown access"},
       {IsTransport(m.transport), "attach: unknown transport"},
       {IsBlockCount(m.transport, m.blocks), "attach: the number of blocks is out of range"},
       {IsSize(m.size_bytes), "attach: size_bytes is out of range"},
       {IsSize(m.mapped_bytes) && m.size_bytes <= m.mapped_bytes,
        "attach: mapped_bytes is out of range"},
       {m.offset <= m.mapped_bytes - m.size_bytes, "attach: offset is out of range"}});
}
template <>
Result<void> Validate(const DetachRequest& m) {
  return Require({{m.lease_id != 0, "detach: lease_id is 0"}});
}
template <>
Result<void> Validate(const CreateRequest& m) {
  return Require({{IsName(m.name), "create: name is not a DNS label"},
                  {IsSize(m.size_bytes), "create: size_bytes is out of range"},
                  {(m.flags & ~kFlagsAll) == 0, "create: unknown flags"},
                  {(m.flags & kFlagUnpublished) == 0 || (m.flags & kFlagAttach) != 0,
                   "create: kFlagUnpublished without kFlagAttach"},
                  {IsWriterExit(m.on_writer_exit), "create: unknown on_writer_exit"}});
}
template <>
Result<void> Validate(const ReplaceRequest& m) {
  return Require({{m.reserved == 0, "reserved bytes are not zero"},
                  {IsName(m.name), "replace: name is not a DNS label"},
                  {m.size_bytes <= limits::kBufferBytes, "replace: size_bytes is out of range"},
                  {(m.flags & ~(kFlagAttach | kFlagUnpublished | kFlagUntilUnused)) == 0,
                   "replace: unknown flags"},
                  {(m.flags & kFlagUnpublished) == 0 || (m.flags & kFlagAttach) != 0,
                   "replace: kFlagUnpublished without kFlagAttach"}});
}
template <>
Result<void> Validate(const MakePageRequest& m) {
  return Require({{m.reserved == 0, "reserved bytes are not zero"},
                  {IsName(m.name), "make page: name is not a DNS label"},
                  {IsPageSize(m.size_bytes), "make page: size_bytes is out of range"},
                  {(m.flags & ~(kFlagWritersAll | kFlagOneWriter | kFlagUntilUnused)) == 0,
                   "make page: unknown flags"}});
}
template <>
Result<void> Validate(const PublishRequest& m) {
  return Require({{m.lease_id != 0, "publish: lease_id is 0"}});
}
template <>
Result<void> Validate(const OfferRequest& m) {
  return Require(
      {{IsName(m.name), "offer: name is not a DNS label"},
       {IsSize(m.size_bytes), "offer: size_bytes is out of range"},
       {IsSize(m.mapped_bytes) && m.size_bytes <= m.mapped_bytes,
        "offer: mapped_bytes is out of range"},
       {m.offset <= m.mapped_bytes - m.size_bytes, "offer: offset is out of range"},
       {(m.flags & ~(kFlagWritersAll | kFlagOneWriter)) == 0, "offer: unknown flags"},
       {IsWriterExit(m.on_writer_exit), "offer: unknown on_writer_exit"},
       {IsTransport(m.transport) && m.transport != static_cast<uint32_t>(Transport::kHost),
        "offer: unknown transport"},
       {m.transport != static_cast<uint32_t>(Transport::kCuIpc) || m.pid > 0,
        "offer: transport cuipc without a PID"}});
}
template <>
Result<void> Validate(const OfferReply& m) {
  return Require({{m.generation != 0, "offer: generation is 0"}});
}
template <>
Result<void> Validate(const StageBlockRequest& m) {
  return Require({{m.reserved == 0, "reserved bytes are not zero"},
                  {IsSize(m.mapped_bytes), "stage block: mapped_bytes is out of range"},
                  {m.index < limits::kBlocks, "stage block: index is out of range"}});
}
template <>
Result<void> Validate(const BlockRequest& m) {
  return Require({{m.reserved == 0, "reserved bytes are not zero"},
                  {m.lease_id != 0, "block: lease_id is 0"},
                  {m.index < limits::kBlocks, "block: index is out of range"}});
}
template <>
Result<void> Validate(const BlockReply& m) {
  return Require({{IsSize(m.mapped_bytes), "block: mapped_bytes is out of range"}});
}
template <>
Result<void> Validate(const DeleteRequest& m) {
  return Require({{IsName(m.name), "delete: name is not a DNS label"}});
}
template <>
Result<void> Validate(const HoldersRequest& m) {
  return Require({{IsNameOrEmpty(m.name), "holders: name is not a DNS label"}});
}
template <>
Result<void> Validate(const HoldersReply& m) {
  if (m.reserved != 0) return Broken("reserved bytes are not zero");
  if (m.count > kHoldersPerReply) return Broken("holders: more entries than fit");
  for (uint32_t i = 0; i < m.count; ++i) {
    const HolderEntry& e = m.entries[i];
    if (!IsName(e.buffer) || !IsName(e.container))
      return Broken("holders: a name is not a DNS label");
    if (!IsAccess(e.access) || !IsPeerWay(e.peer_way))
      return Broken("holders: an entry has an unknown access or peer_way");
  }
  return {};
}
template <>
Result<void> Validate(const BrokerInfoRequest& m) {
  return Require({{m.reserved == 0, "reserved bytes are not zero"}});
}
template <>
Result<void> Validate(const BrokerInfoReply& m) {
  return Require({{IsName(m.container), "broker info: container is not a DNS label"},
                  {m.simulated <= 1, "broker info: simulated is not 0 or 1"}});
}
template <>
Result<void> Validate(const TransferRequest& m) {
  return Require({{m.file_way == 0 || m.file_way == 4 || m.file_way == 5,
                   "transfer: file_way is not 0, kGds or kAutoGds"},
                  {IsName(m.name), "transfer: name is not a DNS label"},
                  {m.direction >= 1 && m.direction <= 3, "transfer: unknown direction"},
                  {m.chunk_bytes <= (uint64_t{1} << 30), "transfer: chunk_bytes is above 1 GiB"}});
}
template <>
Result<void> Validate(const TransferReply& m) {
  return Require({{m.transfer_id != 0, "transfer: transfer_id is 0"}});
}
template <>
Result<void> Validate(const TransferStatusRequest& m) {
  return Require({{m.reserved == 0, "reserved bytes are not zero"},
                  {m.transfer_id != 0, "transfer status: transfer_id is 0"},
                  {m.cancel <= 1, "transfer status: cancel is not 0 or 1"}});
}
template <>
Result<void> Validate(const TransferStatusReply& m) {
  return Require(
      {{m.reserved == 0, "reserved bytes are not zero"},
       {m.finished <= 1, "transfer status: finished is not 0 or 1"},
       {m.done_bytes <= m.total_bytes, "transfer status: done_bytes is above total_bytes"}});
}
template <>
Result<void> Validate(const TransferReportReply& m) {
  if (auto valid = Validate(m.status); !valid) return valid;
  return Require({{m.reserved == 0, "reserved bytes are not zero"},
                  {m.moving_ns <= INT64_MAX, "transfer report: moving_ns is out of range"},
                  {m.file_way <= 4, "transfer report: unknown file_way"}});
}
template <>
Result<void> Validate(const ContentRequest& m) {
  return Require({{m.reserved == 0, "reserved bytes are not zero"},
                  {m.lease_id != 0, "content: lease_id is 0"},
                  {m.complete <= 1, "content: complete is not 0 or 1"}});
}
template <>
Result<void> Validate(const DescribeRequest& m) {
  return Require({{m.lease_id != 0, "describe: lease_id is 0"},
                  {m.size_bytes >= 1 && m.size_bytes <= limits::kDescriptionBytes,
                   "describe: size_bytes is out of range"}});
}
template <>
Result<void> Validate(const DescriptionRequest& m) {
  return Require({{IsName(m.name), "description: name is not a DNS label"}});
}
template <>
Result<void> Validate(const DescriptionReply& m) {
  return Require(
      {{m.generation != 0, "description: generation is 0"},
       {m.size_bytes <= limits::kDescriptionBytes, "description: size_bytes is out of range"}});
}
template <>
Result<void> Validate(const AlarmRequest& m) {
  const bool names = m.use == static_cast<uint32_t>(AlarmUse::kNames);
  return Require({{m.use >= 1 && m.use <= 3, "alarm: unknown use"},
                  {m.news <= (names ? 0u : 1u), "alarm: unknown news"},
                  {names == (m.lease_id == 0), "alarm: lease_id does not fit the use"}});
}
template <>
Result<void> Validate(const AlarmReply&) {
  return {};
}
template <>
Result<void> Validate(const AnnounceDescriptorRequest& m) {
  return Require({{m.reserved == 0, "reserved bytes are not zero"}});
}
template <>
Result<void> Validate(const CountersRequest& m) {
  return Require({{m.reserved == 0, "reserved bytes are not zero"}});
}
template <>
Result<void> Validate(const CountersReply& m) {
  return Require(
      {{m.version != 0, "counters: version is 0"},
       {m.size_bytes == sizeof(CounterPage), "counters: size_bytes is not the size of a page"}});
}
template <>
Result<void> Validate(const EmptyReply& m) {
  return Require({{m.reserved == 0, "reserved bytes are not zero"}});
}
template <>
Result<void> Validate(const ErrorBody& m) {
  return Require({{m.reserved == 0, "reserved bytes are not zero"},
                  {IsTerminated(m.what), "an error's text is not NUL-terminated"},
                  {IsTerminated(m.remedy), "an error's remedy is not NUL-terminated"}});
}

}  // namespace gpushm::protocol
