#include "contract/protocol/link.h"

#include <algorithm>

#include "contract/limits.h"
#include "contract/protocol/rules.h"

namespace gpushm::protocol {
namespace {

constexpr uint32_t kBufferFlags = kFlagWritersAll | kFlagOneWriter | kFlagUntilUnused;

}  // namespace

Result<void> Agree(const LinkWelcome& welcome) {
  if (welcome.version >= kLinkMinVersion && welcome.version <= kLinkMaxVersion) return {};
  return Fail(Code::kIncompatible,
              Concat("the plugin chose link version ", welcome.version,
                     ", but this program supports ", kLinkMinVersion, " to ", kLinkMaxVersion),
              kOtherLinkVersion);
}

Result<LinkHeader> ParseLinkHeader(std::span<const std::byte> message) {
  if (message.size() < sizeof(LinkHeader)) {
    return Broken(Concat("a link message has ", message.size(), " bytes, its header alone has ",
                         sizeof(LinkHeader)));
  }
  LinkHeader header;
  std::memcpy(&header, message.data(), sizeof header);
  if (header.magic != kLinkMagic) {
    return Broken(Concat("a link message has the bad magic number 0x", std::hex, header.magic,
                         ", must be 0x", kLinkMagic, " (GSLK)"));
  }
  const bool known = IsGreeting(static_cast<LinkKind>(header.kind))
                         ? header.version == kLinkHelloVersion
                         : header.version >= kLinkMinVersion && header.version <= kLinkMaxVersion;
  if (!known) {
    return Fail(Code::kIncompatible,
                Concat("the peer sent kind ", header.kind, " of link version ", header.version,
                       ", but this side supports ", kLinkMinVersion, " to ", kLinkMaxVersion),
                kOtherLinkVersion);
  }
  if (header.size_bytes != message.size()) {
    return Broken(Concat("a link message has ", message.size(), " bytes, but its header says ",
                         header.size_bytes));
  }
  if (auto valid = Rules("a link message")
                       .Range("kind", header.kind, 1, kMaxLinkKind)
                       .Reserved(header.reserved)
                       .result();
      !valid) {
    return std::unexpected(valid.error());
  }
  return header;
}

template <>
Result<void> ValidateLink(const LinkHello& m) {
  return Rules("link hello")
      .That(m.min_version <= m.max_version, "min_version ", m.min_version, " is above max_version ",
            m.max_version)
      .Range("want_kept", m.want_kept, 0, 1)
      .Terminated("program", m.program)
      .result();
}
template <>
Result<void> ValidateLink(const LinkWelcome& m) {
  return Rules("link welcome")
      .Range("number of other GPUs", m.other_gpus, 0, limits::kPodGpus - 1)
      .NotZero("version", m.version)
      .Range("device_lost", m.device_lost, 0, 1)
      .Name("allocation", m.allocation)
      .Range("pool_bytes", m.pool_bytes, 0, limits::kBufferBytes)
      .Range("number of clients", m.clients, 0, limits::kLinkClients)
      .Range("number of buffers", m.buffers, 0, limits::kLinkBuffers)
      .Range("number of generations", m.generations, 0, limits::kLinkGenerations)
      .Range("number of leases", m.leases, 0, limits::kLeases)
      .result();
}
template <>
Result<void> ValidateLink(const LinkGpu& m) {
  return Rules("link gpu")
      .Range("number", m.number, 1, limits::kPodGpus - 1)
      .Range("lost", m.lost, 0, 1)
      .result();
}
template <>
Result<void> ValidateLink(const LinkOthers& m) {
  return Rules("link others").Range("may_write", m.may_write, 0, 1).Reserved(m.reserved).result();
}
template <>
Result<void> ValidateLink(const LinkRegistry&) {
  return {};
}
template <>
Result<void> ValidateLink(const LinkClient& m) {
  return Rules("link client")
      .NotZero("client_id", m.client_id)
      .Name("container", m.container)
      .PodNameOrEmpty("pod", m.pod)
      .NameOrEmpty("pod_container", m.pod_container)
      .That(IsEmpty(m.pod) == IsEmpty(m.pod_container),
            "pod and pod_container must both be set or both be empty")
      .result();
}
template <>
Result<void> ValidateLink(const LinkBrokerPod& m) {
  return Rules("link broker pod").PodName("pod", m.pod).result();
}
template <>
Result<void> ValidateLink(const LinkBuffer& m) {
  return Rules("link buffer")
      .Name("name", m.name)
      .NameOrEmpty("creator", m.creator)
      .Range("declared", m.declared, 0, 1)
      .Flags(m.flags, kBufferFlags)
      .WriterExit(m.on_writer_exit)
      .Range("state", m.state, 1, BufferState::kFailed)
      .That(m.current == 0 || m.current != m.pending,
            "current and pending are the same generation, ", m.current)
      .Range("loaded_bytes", m.loaded_bytes, 0, limits::kBufferBytes)
      .result();
}
template <>
Result<void> ValidateLink(const LinkGeneration& m) {
  const bool cuipc = m.transport == Transport::kCuIpc;
  const bool host = m.transport == Transport::kHost;
  return Rules("link generation")
      .Blocks(m.transport, m.blocks)
      .Name("name", m.name)
      .NotZero("generation", m.generation)
      .Sizes(m.size_bytes, m.mapped_bytes)
      .AnyTransport(m.transport)
      .Range("pooled", m.pooled, 0, 1)
      .Range("gpu", m.gpu, 0, limits::kPodGpus - 1)
      .That(!cuipc || (m.offerer_pid > 0 && m.pooled == 0 && m.offerer_client != 0),
            "transport cuipc without a valid offerer: offerer_pid is ", m.offerer_pid,
            " (must be above 0), pooled is ", m.pooled, " (must be 0), offerer_client is ",
            m.offerer_client, " (must not be 0)")
      .That(cuipc || m.offerer_client == 0, "offerer_client is ", m.offerer_client,
            ", must be 0 with transport ", m.transport)
      .That(!host || (m.pooled == 0 && m.mapped_bytes <= limits::kPageBytes),
            "invalid sync page: pooled is ", m.pooled, " (must be 0), mapped_bytes is ",
            m.mapped_bytes, " (at most ", limits::kPageBytes, ")")
      .That(!IsBlocks(m.transport) || m.pooled == 0, "pooled is ", m.pooled,
            ", must be 0 with transport ", m.transport, " (blocks)")
      .Range("offset", m.offset, 0, m.mapped_bytes - m.size_bytes)
      .result();
}
template <>
Result<void> ValidateLink(const LinkBlock& m) {
  return Rules("link block")
      .Reserved(m.reserved)
      .NotZero("generation", m.generation)
      .Size("mapped_bytes", m.mapped_bytes)
      .Range("index", m.index, 0, limits::kBlocks - 1)
      .result();
}
template <>
Result<void> ValidateLink(const LinkContent& m) {
  return Rules("link content")
      .NotZero("generation", m.generation)
      .Range("content_bytes", m.content_bytes, 0, limits::kBufferBytes)
      .result();
}
template <>
Result<void> ValidateLink(const LinkDescription& m) {
  return Rules("link description")
      .NotZero("generation", m.generation)
      .Range("size_bytes", m.size_bytes, 0, limits::kDescriptionBytes)
      .result();
}
template <>
Result<void> ValidateLink(const LinkLease& m) {
  return Rules("link lease")
      .AnyPeerWay(m.peer_way)
      .NotZero("lease_id", m.lease_id)
      .NotZero("client_id", m.client_id)
      .NotZero("generation", m.generation)
      .Access(m.access)
      .result();
}
template <>
Result<void> ValidateLink(const LinkDrop& m) {
  const bool buffer = m.what == static_cast<uint32_t>(LinkDropped::kBuffer);
  Rules rules("link drop");
  rules.Reserved(m.reserved).Range("what", m.what, 1, 4);
  if (buffer) return rules.Name("name", m.name).Zero("id", m.id).result();
  return rules.Empty("name", m.name).NotZero("id", m.id).result();
}
template <>
Result<void> ValidateLink(const LinkEnd& m) {
  return Rules("link end").Reserved(m.reserved).result();
}
template <>
Result<void> ValidateLink(const LinkDevice& m) {
  return Rules("link device")
      .Range("gpu", m.gpu, 0, limits::kPodGpus - 1)
      .Range("lost", m.lost, 0, 1)
      .Terminated("reason", m.reason)
      .result();
}
template <>
Result<void> ValidateLink(const LinkCounters& m) {
  return Rules("link counters").Reserved(m.reserved).NotZero("version", m.version).result();
}

}  // namespace gpushm::protocol
