#include "contract/protocol/link.h"

#include <algorithm>

#include "contract/limits.h"
#include "contract/protocol/rules.h"

namespace gpushm::protocol {
namespace {

constexpr uint32_t kBufferFlags = kFlagWritersAll | kFlagOneWriter | kFlagUntilUnused;
constexpr uint32_t kMaxBufferState = 4;  // registry::BufferState::kFailed

}  // namespace

Result<LinkHeader> ParseLinkHeader(std::span<const std::byte> message) {
  if (message.size() < sizeof(LinkHeader)) return Broken("a message is shorter than its header");
  LinkHeader header;
  std::memcpy(&header, message.data(), sizeof header);
  if (header.magic != kLinkMagic)
    return Broken("a link message has a bad magic number (must be GSLK)");
  if (header.version < kLinkMinVersion || header.version > kLinkMaxVersion) {
    return Fail(Code::kIncompatible,
                Concat("the peer uses link version ", header.version, ", but this side supports ",
                       kLinkMinVersion, " to ", kLinkMaxVersion),
                "use a sidecar image from the plugin's release");
  }
  if (header.size_bytes != message.size())
    return Broken("a message's size differs from its header");
  if (header.kind == 0 || header.kind > kMaxLinkKind)
    return Broken("a message has an unknown kind");
  if (header.reserved != 0) return Broken("reserved bytes are not zero");
  return header;
}

template <>
Result<void> ValidateLink(const LinkHello& m) {
  return Require({{m.min_version <= m.max_version, "link hello: min_version is above max_version"},
                  {m.want_kept <= 1, "link hello: want_kept is not 0 or 1"},
                  {IsTerminated(m.program), "link hello: program is not NUL-terminated"}});
}
template <>
Result<void> ValidateLink(const LinkWelcome& m) {
  return Require(
      {{m.reserved == 0, "reserved bytes are not zero"},
       {m.version != 0, "link welcome: version is 0"},
       {m.device_lost <= 1, "link welcome: device_lost is not 0 or 1"},
       {IsName(m.allocation), "link welcome: allocation is not a DNS label"},
       {m.pool_bytes <= limits::kBufferBytes, "link welcome: pool_bytes is out of range"},
       {m.clients <= limits::kLinkClients, "link welcome: too many clients"},
       {m.buffers <= limits::kLinkBuffers, "link welcome: too many buffers"},
       {m.generations <= limits::kLinkGenerations, "link welcome: too many generations"},
       {m.leases <= limits::kLeases, "link welcome: too many leases"}});
}
template <>
Result<void> ValidateLink(const LinkRegistry&) {
  return {};
}
template <>
Result<void> ValidateLink(const LinkClient& m) {
  return Require({{m.client_id != 0, "link client: client_id is 0"},
                  {IsName(m.container), "link client: container is not a DNS label"}});
}
template <>
Result<void> ValidateLink(const LinkBuffer& m) {
  return Require(
      {{IsName(m.name), "link buffer: name is not a DNS label"},
       {IsNameOrEmpty(m.creator), "link buffer: creator is not a DNS label"},
       {m.declared <= 1, "link buffer: declared is not 0 or 1"},
       {(m.flags & ~kBufferFlags) == 0, "link buffer: unknown flags"},
       {IsWriterExit(m.on_writer_exit), "link buffer: unknown on_writer_exit"},
       {m.state >= 1 && m.state <= kMaxBufferState, "link buffer: unknown state"},
       {m.current == 0 || m.current != m.pending,
        "link buffer: current and pending are the same generation"},
       {m.loaded_bytes <= limits::kBufferBytes, "link buffer: loaded_bytes is out of range"}});
}
template <>
Result<void> ValidateLink(const LinkGeneration& m) {
  const bool cuipc = m.transport == static_cast<uint32_t>(Transport::kCuIpc);
  const bool host = m.transport == static_cast<uint32_t>(Transport::kHost);
  return Require(
      {{IsBlockCount(m.transport, m.blocks),
        "link generation: the number of blocks is out of range"},
       {IsName(m.name), "link generation: name is not a DNS label"},
       {m.generation != 0, "link generation: generation is 0"},
       {IsSize(m.size_bytes), "link generation: size_bytes is out of range"},
       {IsSize(m.mapped_bytes) && m.size_bytes <= m.mapped_bytes,
        "link generation: mapped_bytes is out of range"},
       {IsTransport(m.transport), "link generation: unknown transport"},
       {m.pooled <= 1, "link generation: pooled is not 0 or 1"},
       {!cuipc || (m.offerer_pid > 0 && m.pooled == 0 && m.offerer_client != 0),
        "link generation: transport cuipc without a valid offerer"},
       {cuipc || m.offerer_client == 0, "link generation: offerer_client without transport cuipc"},
       {!host || (m.pooled == 0 && m.mapped_bytes <= limits::kPageBytes),
        "link generation: invalid sync page (pooled, or over the size limit)"},
       {!IsBlocks(m.transport) || m.pooled == 0, "link generation: pooled blocks"},
       {m.offset <= m.mapped_bytes - m.size_bytes, "link generation: offset is out of range"}});
}
template <>
Result<void> ValidateLink(const LinkBlock& m) {
  return Require({{m.reserved == 0, "reserved bytes are not zero"},
                  {m.generation != 0, "link block: generation is 0"},
                  {IsSize(m.mapped_bytes), "link block: mapped_bytes is out of range"},
                  {m.index < limits::kBlocks, "link block: index is out of range"}});
}
template <>
Result<void> ValidateLink(const LinkContent& m) {
  return Require(
      {{m.generation != 0, "link content: generation is 0"},
       {m.content_bytes <= limits::kBufferBytes, "link content: content_bytes is out of range"}});
}
template <>
Result<void> ValidateLink(const LinkDescription& m) {
  return Require({{m.generation != 0, "link description: generation is 0"},
                  {m.size_bytes <= limits::kDescriptionBytes,
                   "link description: size_bytes is out of range"}});
}
template <>
Result<void> ValidateLink(const LinkLease& m) {
  return Require({{IsPeerWay(m.peer_way), "link lease: unknown peer_way"},
                  {m.lease_id != 0, "link lease: lease_id is 0"},
                  {m.client_id != 0, "link lease: client_id is 0"},
                  {m.generation != 0, "link lease: generation is 0"},
                  {IsAccess(m.access), "link lease: unknown access"}});
}
template <>
Result<void> ValidateLink(const LinkDrop& m) {
  const bool buffer = m.what == static_cast<uint32_t>(LinkDropped::kBuffer);
  return Require({{m.reserved == 0, "reserved bytes are not zero"},
                  {m.what >= 1 && m.what <= 4, "link drop: unknown kind"},
                  {buffer ? IsName(m.name) : IsNameOrEmpty(m.name) && m.name[0] == '\0',
                   "link drop: invalid name"},
                  {buffer == (m.id == 0), "link drop: invalid id"}});
}
template <>
Result<void> ValidateLink(const LinkEnd& m) {
  return Require({{m.reserved == 0, "reserved bytes are not zero"}});
}
template <>
Result<void> ValidateLink(const LinkDevice& m) {
  return Require({{m.reserved == 0, "reserved bytes are not zero"},
                  {m.lost <= 1, "link device: lost is not 0 or 1"},
                  {IsTerminated(m.reason), "link device: reason is not NUL-terminated"}});
}
template <>
Result<void> ValidateLink(const LinkCounters& m) {
  return Require({{m.reserved == 0, "reserved bytes are not zero"},
                  {m.version != 0, "link counters: version is 0"}});
}

}  // namespace gpushm::protocol
