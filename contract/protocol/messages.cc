#include "contract/protocol/messages.h"

#include <algorithm>

#include "contract/limits.h"
#include "contract/protocol/counters.h"
#include "contract/protocol/rules.h"
#include "platform/base/utf8.h"

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

LineField ToLineField(std::string_view text) {
  LineField field{};
  std::ranges::copy(ToLine(text, field.size() - 1), field.begin());
  return field;
}

std::string_view FromLineField(const LineField& field) {
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
  if (message.size() < sizeof(Header)) {
    return Broken(
        Concat("a message has ", message.size(), " bytes, its header alone has ", sizeof(Header)));
  }
  Header header;
  std::memcpy(&header, message.data(), sizeof header);
  if (header.magic != kMagic) {
    return Broken(Concat("a message has the bad magic number 0x", std::hex, header.magic,
                         ", must be 0x", kMagic, " (GSHM)"));
  }
  const uint16_t kind = header.kind & static_cast<uint16_t>(~kReplyBit);
  const bool known = kind == static_cast<uint16_t>(Kind::kHello)
                         ? header.version == kHelloVersion
                         : header.version >= kMinVersion && header.version <= kMaxVersion;
  if (!known) {
    return Fail(Code::kIncompatible,
                Concat("the peer sent kind ", kind, " of protocol version ", header.version,
                       ", but this side supports ", kMinVersion, " to ", kMaxVersion),
                kOtherVersion);
  }
  if (header.size_bytes != message.size()) {
    return Broken(Concat("a message has ", message.size(), " bytes, but its header says ",
                         header.size_bytes));
  }
  if (kind == 0 || kind > kMaxKind) {
    return Broken(Concat("a message has the unknown kind ", kind, ", must be 1 to ", kMaxKind));
  }
  if (header.status > static_cast<uint32_t>(kMaxCode)) {
    return Broken(
        Concat("a message has the unknown status ", header.status, ", must be 0 to ", kMaxCode));
  }
  return header;
}

Result<Status> ParseError(std::span<const std::byte> message) {
  const Result<Header> header = ParseHeader(message);
  if (!header) return std::unexpected(header.error());
  const Result<ErrorBody> body = Parse<ErrorBody>(message);
  if (!body) return std::unexpected(body.error());
  if (header->status == 0)
    return Broken(Concat("an error reply has status 0, must be 1 to ", kMaxCode));
  return Status(static_cast<Code>(header->status), body->what.data(), body->remedy.data(),
                body->sys_errno);
}

template <>
Result<void> Validate(const HelloRequest& m) {
  const bool has_token = m.resume_token != ResumeToken{};
  return Rules("hello")
      .Reserved(m.reserved)
      .That(m.min_version <= m.max_version, "min_version ", m.min_version, " is above max_version ",
            m.max_version)
      .Terminated("library", m.library)
      .That((m.resume_client_id != 0) == has_token, "resume_client_id is ", m.resume_client_id,
            ", but resume_token is ", has_token ? "set" : "zero",
            ": they must both be set or both be zero")
      .result();
}
template <>
Result<void> Validate(const HelloReply& m) {
  return Rules("hello")
      .Reserved(m.reserved0)
      .NotZero("client_id", m.client_id)
      .That(m.token != ResumeToken{}, "token is zero, must not be zero")
      .Range("resumed", m.resumed, 0, 1)
      .Range("leases", m.leases, 0, limits::kLeases)
      .That(m.resumed == 1 || (m.leases == 0 && m.lease_sum == 0),
            "a new client cannot have leases, but has ", m.leases, " with the sum ", m.lease_sum)
      .Range("simulated", m.simulated, 0, 1)
      .Name("container", m.container)
      .result();
}
template <>
Result<void> Validate(const AttachRequest& m) {
  return Rules("attach").Name("name", m.name).Access(m.access).AnyPeerWay(m.peer_way).result();
}
template <>
Result<void> Validate(const AttachReply& m) {
  return Rules("attach")
      .NotZero("lease_id", m.lease_id)
      .Range("number of blocks", m.blocks, 0, limits::kBlocks)
      .result();
}
template <>
Result<void> Validate(const MakeReply& m) {
  return Rules("make")
      .Reserved(m.reserved)
      .NotZero("generation", m.generation)
      .Sizes(m.size_bytes, m.mapped_bytes)
      .Range("gpu", m.gpu, 0, limits::kPodGpus - 1)
      .result();
}
template <>
Result<void> Validate(const DetachRequest& m) {
  return Rules("detach").NotZero("lease_id", m.lease_id).result();
}
template <>
Result<void> Validate(const CreateRequest& m) {
  return Rules("create")
      .Name("name", m.name)
      .Size("size_bytes", m.size_bytes)
      .Flags(m.flags, kFlagsAll | kFlagGpuMask)
      .UnpublishedIsAttached(m.flags)
      .WriterExit(m.on_writer_exit)
      .result();
}
template <>
Result<void> Validate(const ReplaceRequest& m) {
  return Rules("replace")
      .Reserved(m.reserved)
      .Name("name", m.name)
      .Range("size_bytes", m.size_bytes, 0, limits::kBufferBytes)
      .Flags(m.flags, kFlagAttach | kFlagUnpublished | kFlagUntilUnused)
      .UnpublishedIsAttached(m.flags)
      .result();
}
template <>
Result<void> Validate(const MakePageRequest& m) {
  return Rules("make page")
      .Reserved(m.reserved)
      .Name("name", m.name)
      .Range("size_bytes", m.size_bytes, 1, limits::kPageBytes)
      .Flags(m.flags, kFlagWritersAll | kFlagOneWriter | kFlagUntilUnused)
      .result();
}
template <>
Result<void> Validate(const PublishRequest& m) {
  return Rules("publish").NotZero("lease_id", m.lease_id).result();
}
template <>
Result<void> Validate(const OfferRequest& m) {
  return Rules("offer")
      .Name("name", m.name)
      .Sizes(m.size_bytes, m.mapped_bytes)
      .Range("offset", m.offset, 0, m.mapped_bytes - m.size_bytes)
      .Flags(m.flags, kFlagWritersAll | kFlagOneWriter)
      .WriterExit(m.on_writer_exit)
      .AnyTransport(m.transport)
      .That(m.transport != Transport::kHost, "transport is ", m.transport,
            " (host), must be 1, 2 or 4")
      .That(m.transport != Transport::kCuIpc || m.pid > 0, "pid is ", m.pid,
            ", must be above 0 with transport ", m.transport, " (cuipc)")
      .result();
}
template <>
Result<void> Validate(const OfferReply& m) {
  return Rules("offer").NotZero("generation", m.generation).result();
}
template <>
Result<void> Validate(const StageBlockRequest& m) {
  return Rules("stage block")
      .Reserved(m.reserved)
      .Size("mapped_bytes", m.mapped_bytes)
      .Range("index", m.index, 0, limits::kBlocks - 1)
      .result();
}
template <>
Result<void> Validate(const BlockRequest& m) {
  return Rules("block")
      .Reserved(m.reserved)
      .NotZero("lease_id", m.lease_id)
      .Range("index", m.index, 0, limits::kBlocks - 1)
      .result();
}
template <>
Result<void> Validate(const BlockReply& m) {
  return Rules("block").Size("mapped_bytes", m.mapped_bytes).result();
}
template <>
Result<void> Validate(const DeleteRequest& m) {
  return Rules("delete").Name("name", m.name).result();
}
template <>
Result<void> Validate(const HoldersRequest& m) {
  return Rules("holders").NameOrEmpty("name", m.name).result();
}
template <>
Result<void> Validate(const HoldersReply& m) {
  Rules rules("holders");
  rules.Reserved(m.reserved).Range("count", m.count, 0, kHoldersPerReply);
  for (uint32_t i = 0; rules.result() && i < m.count; ++i) {
    const HolderEntry& e = m.entries[i];
    rules.Name("buffer", e.buffer)
        .Name("container", e.container)
        .Access(e.access)
        .AnyPeerWay(e.peer_way);
  }
  return rules.result();
}
template <>
Result<void> Validate(const BrokerInfoRequest& m) {
  return Rules("broker info").Reserved(m.reserved).result();
}
template <>
Result<void> Validate(const BrokerInfoReply& m) {
  return Rules("broker info")
      .Name("container", m.container)
      .Range("simulated", m.simulated, 0, 1)
      .result();
}
template <>
Result<void> Validate(const GpusRequest& m) {
  return Rules("gpus").Reserved(m.reserved).result();
}
template <>
Result<void> Validate(const GpusReply& m) {
  Rules rules("gpus");
  rules.Reserved(m.reserved).Range("count", m.count, 1, limits::kPodGpus);
  for (const GpuEntry& entry : m.entries) {
    rules.Reserved(entry.reserved).Range("lost", entry.lost, 0, 1);
  }
  return rules.result();
}
template <>
Result<void> Validate(const ContentRequest& m) {
  return Rules("content")
      .Reserved(m.reserved)
      .NotZero("lease_id", m.lease_id)
      .Range("complete", m.complete, 0, 1)
      .That(m.complete == 1 || m.digest.empty(), "a digest of content that is not complete")
      .result();
}
template <>
Result<void> Validate(const ReasonRequest& m) {
  return Rules("reason")
      .Name("name", m.name)
      .Range("code", m.code, 1, kMaxCode)
      .Range("failed", m.failed, 0, 1)
      .Line("text", m.text)
      .result();
}
template <>
Result<void> Validate(const DescribeRequest& m) {
  return Rules("describe")
      .NotZero("lease_id", m.lease_id)
      .Range("size_bytes", m.size_bytes, 1, limits::kDescriptionBytes)
      .result();
}
template <>
Result<void> Validate(const DescriptionRequest& m) {
  return Rules("description").Name("name", m.name).result();
}
template <>
Result<void> Validate(const DescriptionReply& m) {
  return Rules("description")
      .NotZero("generation", m.generation)
      .Range("size_bytes", m.size_bytes, 0, limits::kDescriptionBytes)
      .result();
}
template <>
Result<void> Validate(const AlarmRequest&) {
  return {};
}
template <>
Result<void> Validate(const AlarmReply&) {
  return {};
}
template <>
Result<void> Validate(const AnnounceDescriptorRequest& m) {
  return Rules("announce descriptor").Reserved(m.reserved).result();
}
template <>
Result<void> Validate(const CountersRequest& m) {
  return Rules("counters").Reserved(m.reserved).result();
}
template <>
Result<void> Validate(const PodRequest& m) {
  return Rules("pod").PodName("pod", m.pod).Name("container", m.container).result();
}
template <>
Result<void> Validate(const CountersReply& m) {
  return Rules("counters")
      .NotZero("version", m.version)
      .Range("size_bytes", m.size_bytes, sizeof(CounterPage), sizeof(CounterPage))
      .result();
}
template <>
Result<void> Validate(const EmptyReply& m) {
  return Rules("an empty reply").Reserved(m.reserved).result();
}
template <>
Result<void> Validate(const ErrorBody& m) {
  return Rules("an error reply")
      .Reserved(m.reserved)
      .Terminated("its text", m.what)
      .Terminated("its remedy", m.remedy)
      .result();
}

}  // namespace gpushm::protocol
