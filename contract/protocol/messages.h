// The protocol between library and broker: every message, its bytes and its rules.
//
// A message is one SOCK_SEQPACKET datagram of at most limits::kMessageBytes: a Header, then the
// fixed-size body of its kind, little-endian, no padding. A request gets exactly one reply, of the
// same kind with kReplyBit and the same request_id. A reply whose status is not 0 has an ErrorBody
// instead. A connection has one request in progress at a time. A client that gave up on a reply
// recognises it later by its request_id and skips it.
//
// Invariants
//   (1) Every field is validated by Parse<>() before anybody uses it: exact size, known kind,
//       zeroed reserved bytes, NUL-terminated text, names that are DNS labels, lines without
//       control characters, enums in range.
//   (2) A peer that breaks a rule is disconnected, never asserted on.
//   (3) Nothing that a client sends identifies it: the socket on which it connected identifies its
//       container. The name in kPod is only shown.
//   (4) Descriptors travel only with the kinds that say so. A client announces one first
//       (kAnnounceDescriptor), so that the broker can keep descriptor passing switched off on its
//       sockets otherwise (SO_PASSRIGHTS, Linux 6.16).
//
// Versions. A connection uses the highest version that both sides support, agreed on in Hello. The
// bytes of Hello and of its reply never change, so that any two versions can read each other's
// Hello and refuse each other with a reason. Every other message carries the version that
// introduced its kind.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "contract/limits.h"
#include "contract/types.h"
#include "platform/base/digest.h"
#include "platform/base/name.h"
#include "platform/base/status.h"

namespace gpushm::protocol {

using gpushm::OnWriterExit;
using gpushm::PeerWay;
using gpushm::Transport;

inline constexpr uint32_t kMagic = 0x4d485347;  // "GSHM"
inline constexpr uint16_t kMinVersion = 11;
inline constexpr uint16_t kMaxVersion = 11;
// In the header of Hello and its reply.
inline constexpr uint16_t kHelloVersion = 1;
inline constexpr uint16_t kReplyBit = 0x8000;

// The name of the socket in each container's folder, and the default folder.
inline constexpr char kSocketName[] = "gpushm.sock";
inline constexpr char kDefaultFolder[] = "/run/gpushm";

enum class Kind : uint16_t {
  kHello = 1,  // + pidfd if the broker cannot get one itself (Linux < 6.5). Reply + registry memfd.
  kAttach = 2,  // Reply + descriptor (transports vmm and host).
  kDetach = 3,
  kCreate = 4,   // Reply + descriptor if kFlagAttach.
  kReplace = 5,  // Reply + descriptor if kFlagAttach.
  kPublish = 6,
  kOffer = 7,  // + descriptor (transport vmm).
  kDelete = 8,
  kHolders = 9,
  kBrokerInfo = 10,
  kGpus = 11,
  kPod = 12,                 // A client in another pod says which one it is.
  kContent = 13,             // A writer says how far its load is, or how many bytes are content.
  kAnnounceDescriptor = 14,  // The next request carries a descriptor.
  kCounters = 15,            // Reply + memfd of a CounterPage (counters.h), the client's own.
  kMakePage = 16,            // Reply + memfd, zeroed, unpublished.
  kDescribe = 17,            // + memfd, sealed: sets the description of a generation.
  kDescription = 18,         // Reply + that memfd, if there is one.
  kAlarm = 19,               // Reply + timerfd (docs/design/waiting.md).
  kStageBlock = 20,          // + descriptor. For a kOffer to come, with Transport::kBlocks.
  kBlock = 21,               // Reply + descriptor.
  kReason = 22,              // Why a load waits or failed.
};
inline constexpr uint16_t kMaxKind = 22;

struct Header {
  uint32_t magic;
  uint16_t version;
  uint16_t kind;
  uint32_t size_bytes;  // The whole message.
  uint32_t status;      // Replies: 0 or a Code. Requests: 0.
  uint64_t request_id;
};
static_assert(sizeof(Header) == 24);

using NameField = std::array<char, limits::kNameBytes + 1>;  // NUL-padded.

// Flags of kCreate, kReplace, kMakePage and kOffer.
inline constexpr uint32_t kFlagAttach = 1;       // The requester gets a write attachment.
inline constexpr uint32_t kFlagUnpublished = 2;  // Others see it only after kPublish.
inline constexpr uint32_t kFlagWritersAll = 4;   // Every container may write, not only the creator.
inline constexpr uint32_t kFlagOneWriter = 8;
// The name and its memory end with the last lease on it. With kReplace, and for a page that follows
// another one, this applies only if the former generation had the flag, too.
inline constexpr uint32_t kFlagUntilUnused = 16;
inline constexpr uint32_t kFlagsAll = 31;
// kCreate: the number of the GPU among the pod's, in bits 8 to 11.
inline constexpr uint32_t kFlagGpuShift = 8;
inline constexpr uint32_t kFlagGpuMask = (limits::kPodGpus - 1) << kFlagGpuShift;
constexpr uint32_t GpuOfFlags(uint32_t flags) { return (flags & kFlagGpuMask) >> kFlagGpuShift; }

// A secret between a broker, its plugin and one client. A process that has it may resume that
// client's connection, in the same container (docs/guides/security.md). It is random and never all
// zero.
using ResumeToken = std::array<uint8_t, 16>;

struct HelloRequest {
  uint16_t min_version;
  uint16_t max_version;
  uint32_t reserved;
  NameField library;          // Free text for logs, NUL-terminated.
  uint64_t resume_client_id;  // Its client id on the connection that it lost; 0: none.
  ResumeToken resume_token;   // Zero if resume_client_id is 0.
};
static_assert(sizeof(HelloRequest) == 96);

struct HelloReply {
  uint16_t version;
  uint16_t reserved0;
  uint32_t simulated;  // 1: the broker runs on the simulated driver.
  uint64_t client_id;
  uint64_t epoch;  // Changes with every start of the broker.
  std::array<uint8_t, 16> gpu_uuid;
  NameField container;  // The client's container, according to the socket on which it connected.
  ResumeToken token;    // For the next connection, if this one is lost.
  uint32_t resumed;     // 1: client_id is the requested one and kept its leases:
  uint32_t leases;      // how many they are,
  uint64_t lease_sum;   // and the sum of their numbers, modulo 2^64.
};
static_assert(sizeof(HelloReply) == 136);

struct AttachRequest {
  NameField name;
  uint32_t access;                   // Access
  uint32_t peer_way;                 // PeerWay
  uint64_t generation;               // 0: the current one.
  std::array<uint8_t, 16> gpu_uuid;  // Zero: the client sees no GPU (accepted only for kHost).
};
static_assert(sizeof(AttachRequest) == 96);

// What the registry's record of that generation does not say.
struct AttachReply {
  uint64_t lease_id;
  int32_t offerer_pid;  // kCuIpc: getpid() of the process that offered it.
  uint32_t blocks;      // kBlocks: how many they are, for kBlock. Otherwise 0.
  uint64_t offset;      // Of the first byte in the memory (kCuIpc, kBlocks).
  std::array<uint8_t, 64> cuipc_handle;
};
static_assert(sizeof(AttachReply) == 88);

// Reply to kCreate, kReplace and kMakePage: what was made is in no record before it is published.
struct MakeReply {
  uint64_t lease_id;  // With write access; 0 without kFlagAttach: then no descriptor comes.
  uint64_t generation;
  uint64_t size_bytes;
  uint64_t mapped_bytes;
  std::array<uint8_t, 16> gpu_uuid;  // Where it is; of a page, the pod's first GPU.
  uint32_t gpu;                      // The number of that GPU.
  uint32_t reserved;
};
static_assert(sizeof(MakeReply) == 56);

struct DetachRequest {
  uint64_t lease_id;
};
static_assert(sizeof(DetachRequest) == 8);

struct CreateRequest {
  NameField name;
  uint64_t size_bytes;
  uint32_t flags;
  uint32_t on_writer_exit;  // OnWriterExit
};
static_assert(sizeof(CreateRequest) == 80);

struct ReplaceRequest {
  NameField name;
  uint64_t size_bytes;  // 0: unchanged.
  uint32_t flags;       // kFlagAttach, kFlagUnpublished, kFlagUntilUnused
  uint32_t reserved;
};
static_assert(sizeof(ReplaceRequest) == 80);

// Makes the sync page of a signal, barrier or ring, always unpublished and attached for writing.
struct MakePageRequest {
  NameField name;
  uint64_t size_bytes;
  uint32_t flags;  // kFlagWritersAll, kFlagOneWriter, kFlagUntilUnused
  uint32_t reserved;
  uint64_t after_generation;  // 0: the name is new. Otherwise the current generation.
};
static_assert(sizeof(MakePageRequest) == 88);

struct PublishRequest {
  uint64_t lease_id;
};
static_assert(sizeof(PublishRequest) == 8);

struct OfferRequest {
  NameField name;
  uint64_t size_bytes;
  uint64_t mapped_bytes;    // The whole allocation.
  uint32_t flags;           // kFlagWritersAll, kFlagOneWriter
  uint32_t on_writer_exit;  // OnWriterExit
  uint32_t transport;       // Transport
  int32_t pid;              // kCuIpc: getpid() of the offerer, for the equal-PID check only.
  uint64_t offset;          // Of the first byte in the memory (kCuIpc, kBlocks).
  std::array<uint8_t, 64> cuipc_handle;
  std::array<uint8_t, 16> gpu_uuid;
};
static_assert(sizeof(OfferRequest) == 184);

struct OfferReply {
  uint64_t generation;
};
static_assert(sizeof(OfferReply) == 8);

// The bytes for which an offer counts. For a whole allocation, they are its size. Otherwise they
// are the offered range, because an allocator offers many ranges of one allocation.
constexpr uint64_t OfferedBytes(Transport transport, uint64_t size_bytes, uint64_t mapped_bytes) {
  return transport == Transport::kVmm ? mapped_bytes : size_bytes;
}

// One allocation of the client's next offer, in the order of their addresses. Index 0 begins anew.
// The broker closes what is not offered when the client's connection ends.
struct StageBlockRequest {
  uint64_t mapped_bytes;  // The whole allocation.
  uint32_t index;
  uint32_t reserved;
};
static_assert(sizeof(StageBlockRequest) == 16);

struct BlockRequest {
  uint64_t lease_id;
  uint32_t index;
  uint32_t reserved;
};
static_assert(sizeof(BlockRequest) == 16);

struct BlockReply {
  uint64_t mapped_bytes;
};
static_assert(sizeof(BlockReply) == 8);

struct DeleteRequest {
  NameField name;
};
static_assert(sizeof(DeleteRequest) == 64);

struct HoldersRequest {
  NameField name;           // Empty: all buffers.
  uint64_t after_lease_id;  // Continue after this lease, the last one seen; 0: from the start.
};
static_assert(sizeof(HoldersRequest) == 72);

struct HolderEntry {
  NameField buffer;
  NameField container;
  uint64_t generation;
  uint64_t client_id;
  uint64_t lease_id;
  int64_t since_unix_ns;
  uint32_t access;    // Access
  uint32_t peer_way;  // PeerWay
};
static_assert(sizeof(HolderEntry) == 168);
inline constexpr uint32_t kHoldersPerReply = 20;

struct HoldersReply {
  uint32_t count;  // Valid entries; fewer than kHoldersPerReply: these are the last.
  uint32_t reserved;
  std::array<HolderEntry, kHoldersPerReply> entries;  // Ordered by lease_id.
};
static_assert(sizeof(Header) + sizeof(HoldersReply) <= limits::kMessageBytes);

struct BrokerInfoRequest {
  uint64_t reserved;
};
static_assert(sizeof(BrokerInfoRequest) == 8);

struct BrokerInfoReply {
  NameField container;
  std::array<uint8_t, 16> gpu_uuid;
  uint64_t pool_bytes;
  uint64_t used_bytes;
  uint64_t epoch;
  uint32_t clients;
  uint32_t leases;
  uint32_t simulated;
  uint32_t version;
};
static_assert(sizeof(BrokerInfoReply) == 120);

// The pod's GPUs, in the order of their numbers.
struct GpusRequest {
  uint64_t reserved;
};
static_assert(sizeof(GpusRequest) == 8);

struct GpuEntry {
  std::array<uint8_t, 16> gpu_uuid;
  uint64_t pool_bytes;
  uint64_t used_bytes;
  uint32_t lost;  // 1: it is unhealthy.
  uint32_t reserved;
};
static_assert(sizeof(GpuEntry) == 40);

struct GpusReply {
  uint32_t count;
  uint32_t reserved;
  std::array<GpuEntry, limits::kPodGpus> entries;  // The first `count`; the others are zero.
};
static_assert(sizeof(GpusReply) == 648);

struct ContentRequest {
  uint64_t lease_id;  // A write lease.
  uint64_t loaded_bytes;
  uint32_t complete;  // 0: LOADING. 1: READY, or still unpublished.
  uint32_t reserved;
  Digest digest{};  // Of these bytes, if the writer knows it and they are complete.
};
static_assert(sizeof(ContentRequest) == 40);

// One line of text, padded with NUL.
using LineField = std::array<char, limits::kReasonBytes + 1>;

// Why a buffer has no content, for everybody who waits for it. Only from who may write it, or load
// it first. It has no effect on a buffer that has its content, or that another client loads.
struct ReasonRequest {
  NameField name;
  uint32_t code;    // A Code: what kind of reason it is.
  uint32_t failed;  // 0: the load waits, and the state stays. 1: a LOADING buffer becomes FAILED.
  LineField text;
};
static_assert(sizeof(ReasonRequest) == 328);

// Sets what the bytes of a generation are (docs/design/descriptions.md).
struct DescribeRequest {
  uint64_t lease_id;  // A write lease.
  uint64_t size_bytes;
};
static_assert(sizeof(DescribeRequest) == 16);

struct DescriptionRequest {
  NameField name;
  uint64_t generation;  // 0: the current one. Otherwise any that exists.
};
static_assert(sizeof(DescriptionRequest) == 72);

struct DescriptionReply {
  uint64_t generation;
  uint64_t size_bytes;  // 0: it has no description, and no descriptor comes.
};
static_assert(sizeof(DescriptionReply) == 16);

// A descriptor that wakes those who wait in an event loop (docs/design/waiting.md), for one who
// waits, or for one who wakes them.
struct AlarmRequest {
  uint64_t lease_id;  // Of a sync page; 0: the alarm that rings when the registry has changed.
};
static_assert(sizeof(AlarmRequest) == 8);

struct AlarmReply {
  uint64_t number;  // As in the page's header; 0 for the registry's.
};
static_assert(sizeof(AlarmReply) == 8);

struct AnnounceDescriptorRequest {
  uint64_t reserved;
};
static_assert(sizeof(AnnounceDescriptorRequest) == 8);

struct CountersRequest {
  uint64_t reserved;
};
static_assert(sizeof(CountersRequest) == 8);

// For metrics and the status page; nothing is decided by it. A broker that serves only its own pod
// ignores it.
struct PodRequest {
  NameField pod;  // As from ToPodField.
  NameField container;
};
static_assert(sizeof(PodRequest) == 128);

// The same page again if the client had one: a process has one page at a broker.
struct CountersReply {
  uint32_t version;  // kCountersVersion
  uint32_t size_bytes;
};
static_assert(sizeof(CountersReply) == 8);

// Reply to kDetach, kPublish, kDelete, kContent, kReason, kDescribe, kAnnounceDescriptor,
// kStageBlock, kPod.
struct EmptyReply {
  uint64_t reserved;
};
static_assert(sizeof(EmptyReply) == 8);

// Body of every reply whose status is a Code.
struct ErrorBody {
  int32_t sys_errno;
  uint32_t reserved;
  std::array<char, 1536> what;
  std::array<char, 512> remedy;
};
static_assert(sizeof(ErrorBody) == 2056);

// ---- names

// Fails with kInvalidArgument if `name` is not valid; the text gives the reason and names `field`.
Result<void> CheckName(std::string_view name, std::string_view field);
NameField ToNameField(std::string_view name);  // `name` must fit (checked before).
// The name of a pod as far as a field has room: Kubernetes allows 253 bytes.
inline NameField ToPodField(std::string_view name) {
  name = name.substr(0, limits::kNameBytes);
  return ToNameField(name.substr(0, name.find_last_not_of("-.") + 1));
}
std::string_view FromNameField(const NameField& field);
// As one line: what a line may not have becomes '?', and what does not fit is cut off.
LineField ToLineField(std::string_view text);
std::string_view FromLineField(const LineField& field);

// ---- encoding

using Buffer = std::array<std::byte, limits::kMessageBytes>;

template <typename Body>
size_t Encode(Kind kind, bool reply, uint64_t request_id, uint32_t status, const Body& body,
              Buffer* out) {
  static_assert(std::is_trivially_copyable_v<Body>);
  static_assert(sizeof(Header) + sizeof(Body) <= limits::kMessageBytes);
  const Header header{
      .magic = kMagic,
      .version = kind == Kind::kHello ? kHelloVersion : kMinVersion,
      .kind = static_cast<uint16_t>(static_cast<uint16_t>(kind) | (reply ? kReplyBit : 0)),
      .size_bytes = static_cast<uint32_t>(sizeof(Header) + sizeof(Body)),
      .status = status,
      .request_id = request_id};
  std::memcpy(out->data(), &header, sizeof header);
  std::memcpy(out->data() + sizeof header, &body, sizeof body);
  return sizeof header + sizeof body;
}

template <typename Body>
size_t EncodeRequest(Kind kind, uint64_t request_id, const Body& body, Buffer* out) {
  return Encode(kind, false, request_id, 0, body, out);
}
template <typename Body>
size_t EncodeReply(Kind kind, uint64_t request_id, const Body& body, Buffer* out) {
  return Encode(kind, true, request_id, 0, body, out);
}
size_t EncodeError(Kind kind, uint64_t request_id, const Status& status, Buffer* out);

// ---- decoding: every function returns kCorrupt if a rule is broken

// What to do about a peer that broke a rule.
inline constexpr char kOtherPeer[] =
    "check that both ends are gpushm's, from releases that fit together";
// What to do about a library and a broker that have no version in common.
inline constexpr char kOtherVersion[] =
    "make the pod again, so that its sidecar and its library are of one release; a library that is "
    "part of an image must be updated there";

// Checks magic, version, size and kind.
Result<Header> ParseHeader(std::span<const std::byte> message);

// The Status inside an error reply.
Result<Status> ParseError(std::span<const std::byte> message);

// The body of a request or reply whose header was parsed; checks every field.
template <typename Body>
Result<Body> Parse(std::span<const std::byte> message);

// Field rules of each body; defined for every body type of this file.
template <typename Body>
Result<void> Validate(const Body& body);

template <typename Body>
Result<Body> Parse(std::span<const std::byte> message) {
  if (message.size() != sizeof(Header) + sizeof(Body)) {
    return Fail(Code::kCorrupt,
                Concat("a message has ", message.size(), " bytes, but must have ",
                       sizeof(Header) + sizeof(Body), " bytes"),
                kOtherPeer);
  }
  Body body;
  std::memcpy(&body, message.data() + sizeof(Header), sizeof body);
  if (auto valid = Validate(body); !valid) return std::unexpected(valid.error());
  return body;
}

}  // namespace gpushm::protocol
