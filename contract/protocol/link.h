// The plugin link, between a broker and the node's plugin: what the plugin's keeper must know so
// that a broker that was killed finds its buffers again. Each allocation of gpushm.io/memory has
// one link and one SOCK_SEQPACKET socket; the socket on which a connection arrived is its identity.
//
// Everything after the greeting is a *statement*: one datagram without a reply, either "this
// exists" (an upsert by its key) or "this no longer exists". The same statements go both ways:
//   broker -> plugin   as changes happen; and all of them after each connect of a broker that has
//                      state
//   plugin -> broker   the whole kept state, once, if a new broker requests it in its Hello
// So a restarted plugin receives the state again, and a restarted broker receives what it stated
// before it died.
//
//   broker: Hello(want_kept)     plugin: Welcome(pool, GPU), Gpu* (the pod's other GPUs),
//                                        Others (for pods that share the claim)
//   want_kept = 1 (it has nothing):  plugin: Client*, Buffer*, Generation*, Lease*, End
//   want_kept = 0 (it has state):    plugin drops the kept state of this allocation: that of
//                                    another epoch at once, that of the same epoch at the broker's
//                                    End
//   then, in both cases:  broker: Registry, Counters, BrokerPod, Client*, Buffer*, Generation*
//                                 (each with its Block*, Content, Description), Lease*, End,
//                                 changes ...
//                         plugin: Device, whenever a GPU's health changes
//
// The broker sends End once. With it, everything that the broker has not stated since its Hello no
// longer exists. If the broker is killed before End, both remain: what it stated, and what was kept
// before.
//
// Order. A statement that names another (a lease its client and generation, a generation its
// buffer) comes after it. A Drop of a client or generation also drops the leases on it, and a Drop
// of a buffer drops its generations. So each prefix of a stream is a consistent state: what a
// broker managed to send before it was killed is true. Three names may refer to something that does
// not exist yet, or any more. For a buffer's current and pending generation, the plugin then sends
// 0. A generation's publisher and offerer are then dead. Dropping something that does not exist is
// allowed.
//
// Invariants
//   (1) Every field is validated by ParseLink<>() before anybody uses it, as in messages.h.
//   (2) The broker states a change before it answers the client that requested it. What a client
//       knows, the keeper knows, unless the link was down.
//   (3) Descriptors: Others (a listening socket), Registry and Counters (a memfd), Client (its
//       pidfd), Generation with transport vmm or host, Description of more than 0 bytes (a sealed
//       memfd), Block. Each carries one; any other message with one breaks the protocol. A
//       generation or block that was stated before may come without, because what its number refers
//       to (sizes, transport, handle) never changes. If the descriptor is certainly not GPU memory,
//       the plugin keeps neither the generation nor leases on it. That is allowed, because
//       containers make such descriptors.
//   (4) Neither side waits for the other after the greeting: what does not fit into the socket is
//       queued up to a bound. Beyond it, the link is closed and opened again.
//   (5) A link is bounded by limits.h. If a broker states more, the plugin logs it, disconnects the
//       broker, and drops its kept state.
//
// Versions. In Welcome, the plugin chooses the highest version that both sides support; if there is
// none, it says its own and disconnects. The bytes of Hello and Welcome never change, so that any
// two versions can read them. Every other message carries the version that introduced its kind.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#include "contract/limits.h"
#include "contract/protocol/messages.h"

namespace gpushm::protocol {

inline constexpr uint32_t kLinkMagic = 0x4b4c5347;  // "GSLK"
inline constexpr uint16_t kLinkMinVersion = 11;
inline constexpr uint16_t kLinkMaxVersion = 11;
// In the headers of Hello and Welcome.
inline constexpr uint16_t kLinkHelloVersion = 1;

// The socket's name in its folder, and the path at which the sidecar mounts that folder.
inline constexpr char kLinkSocketName[] = "plugin.sock";
inline constexpr char kDefaultLinkFolder[] = "/run/gpushm-link";

enum class LinkKind : uint16_t {
  kHello = 1,
  kWelcome = 2,
  kRegistry = 3,  // + memfd
  kClient = 4,    // + pidfd
  kBuffer = 5,
  kGeneration = 6,  // + descriptor (transports vmm and host)
  kLease = 7,
  kDrop = 8,
  kEnd = 9,  // Ends all statements about what exists.
  kDevice = 10,
  kCounters = 11,  // + memfd
  kContent = 12,
  kDescription = 13,  // + memfd, sealed, unless it is taken away
  kBlock = 14,        // + descriptor
  kGpu = 15,
  kOthers = 16,  // + listening socket
  kBrokerPod = 17,
};
inline constexpr uint16_t kMaxLinkKind = 17;

// Stands for all containers of other pods, as if they were one container of the broker's pod.
inline constexpr char kOtherPods[] = "other-pods";
// Where such a container finds the folder with the socket.
inline constexpr char kClaimFolder[] = "/run/gpushm-claim";

constexpr bool IsGreeting(LinkKind kind) {
  return kind == LinkKind::kHello || kind == LinkKind::kWelcome;
}

struct LinkHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t kind;
  uint32_t size_bytes;  // The whole message.
  uint32_t reserved;
};
static_assert(sizeof(LinkHeader) == 16);

struct LinkHello {
  static constexpr LinkKind kKind = LinkKind::kHello;
  uint16_t min_version;
  uint16_t max_version;
  uint32_t want_kept;  // 1: it has nothing and requests the kept state. 0: it has state.
  uint64_t epoch;      // The epoch of this broker.
  NameField program;   // Free text for logs, NUL-terminated: "gpushm-broker 1.2.3".
};
static_assert(sizeof(LinkHello) == 80);

struct LinkWelcome {
  static constexpr LinkKind kKind = LinkKind::kWelcome;
  uint16_t version;
  uint16_t other_gpus;               // Number of Gpu messages that follow.
  uint32_t device_lost;              // 1: the GPU is unhealthy now.
  std::array<uint8_t, 16> gpu_uuid;  // The first GPU that this allocation is bound to.
  uint64_t pool_bytes;               // Bytes that the allocation's IDs represent, on each GPU.
  NameField allocation;              // "m0000"
  // What follows if it was requested; 0 otherwise.
  uint32_t clients;
  uint32_t buffers;
  uint32_t generations;
  uint32_t leases;
};
static_assert(sizeof(LinkWelcome) == 112);

// One of the other GPUs of the allocation, in the order of their numbers.
struct LinkGpu {
  static constexpr LinkKind kKind = LinkKind::kGpu;
  uint32_t number;  // 1 for the first that follows.
  uint32_t lost;    // 1: the GPU is unhealthy now.
  std::array<uint8_t, 16> gpu_uuid;
};
static_assert(sizeof(LinkGpu) == 24);

// The pods that share the broker's claim connect to this socket. The plugin makes it, so that no
// pod can write in the folder that the others see.
struct LinkOthers {
  static constexpr LinkKind kKind = LinkKind::kOthers;
  uint32_t may_write;  // 0: they may only read.
  uint32_t reserved;
};
static_assert(sizeof(LinkOthers) == 8);

struct LinkRegistry {
  static constexpr LinkKind kKind = LinkKind::kRegistry;
  uint64_t epoch;
};
static_assert(sizeof(LinkRegistry) == 8);

// A process that holds leases. The token lets it resume its connection (messages.h, Hello).
struct LinkClient {
  static constexpr LinkKind kKind = LinkKind::kClient;
  uint64_t client_id;
  std::array<uint8_t, 16> token;
  NameField container;
  // If it is among the other pods and said which one it is in (messages.h, kPod); otherwise empty.
  NameField pod;
  NameField pod_container;  // Of that pod; `container` is kOtherPods.
};
static_assert(sizeof(LinkClient) == 216);

// The pod of the broker, which the plugin shows for a claim that several pods share: it may be
// another one than when the claim was prepared.
struct LinkBrokerPod {
  static constexpr LinkKind kKind = LinkKind::kBrokerPod;
  NameField pod;  // As from ToPodField.
};
static_assert(sizeof(LinkBrokerPod) == 64);

// A name and its rules, without the lists of containers: only declared buffers have lists, and a
// broker reads those from its environment again.
struct LinkBuffer {
  static constexpr LinkKind kKind = LinkKind::kBuffer;
  NameField name;
  NameField creator;        // Container; empty if it is declared.
  uint32_t declared;        // 0 or 1
  uint32_t flags;           // kFlagWritersAll, kFlagOneWriter, kFlagUntilUnused
  uint32_t on_writer_exit;  // OnWriterExit
  uint32_t state;           // BufferState
  uint64_t current;         // Generation; 0: none published yet.
  uint64_t pending;         // Generation; 0: no unpublished one.
  uint64_t loaded_bytes;    // While it is LOADING, or FAILED: how far the load is.
};
static_assert(sizeof(LinkBuffer) == 168);

struct LinkGeneration {
  static constexpr LinkKind kKind = LinkKind::kGeneration;
  NameField name;  // The buffer's name.
  uint64_t generation;
  uint64_t size_bytes;
  uint64_t mapped_bytes;
  uint32_t transport;  // Transport; with kVmm and kHost, this message carries the descriptor.
  uint16_t pooled;     // 1: the broker allocated it. 0: it was offered.
  uint16_t gpu;        // The number of its GPU among those of the pod.
  int32_t offerer_pid;
  uint32_t blocks;            // kBlocks: how many follow. Otherwise 0.
  uint64_t publisher_client;  // If unpublished, the client that may publish it. 0: published.
  uint64_t offerer_client;    // kCuIpc: it ends with this client. Otherwise 0.
  int64_t created_unix_ns;
  uint64_t offset;  // Of the first byte in the memory (kCuIpc, kBlocks).
  std::array<uint8_t, 64> cuipc_handle;
};
static_assert(sizeof(LinkGeneration) == 200);

// One allocation of a generation with Transport::kBlocks, after its generation, in order.
struct LinkBlock {
  static constexpr LinkKind kKind = LinkKind::kBlock;
  uint64_t generation;
  uint64_t mapped_bytes;
  uint32_t index;
  uint32_t reserved;
};
static_assert(sizeof(LinkBlock) == 24);

// How many bytes of a generation are content, if somebody said it; otherwise all are.
struct LinkContent {
  static constexpr LinkKind kKind = LinkKind::kContent;
  uint64_t generation;
  uint64_t content_bytes;
  Digest digest{};  // Of these bytes, if it is known.
};
static_assert(sizeof(LinkContent) == 32);

// The description of a generation. 0 bytes: it has none any more.
struct LinkDescription {
  static constexpr LinkKind kKind = LinkKind::kDescription;
  uint64_t generation;
  uint64_t size_bytes;
};
static_assert(sizeof(LinkDescription) == 16);

struct LinkLease {
  static constexpr LinkKind kKind = LinkKind::kLease;
  uint64_t lease_id;
  uint64_t client_id;
  uint64_t generation;
  int64_t since_unix_ns;
  uint32_t access;    // Access
  uint32_t peer_way;  // PeerWay
};
static_assert(sizeof(LinkLease) == 40);

enum class LinkDropped : uint32_t { kClient = 1, kBuffer = 2, kGeneration = 3, kLease = 4 };

struct LinkDrop {
  static constexpr LinkKind kKind = LinkKind::kDrop;
  uint32_t what;  // LinkDropped
  uint32_t reserved;
  uint64_t id;     // Client, generation or lease; 0 for a buffer.
  NameField name;  // For a buffer; otherwise empty.
};
static_assert(sizeof(LinkDrop) == 80);

struct LinkEnd {
  static constexpr LinkKind kKind = LinkKind::kEnd;
  uint64_t reserved;
};
static_assert(sizeof(LinkEnd) == 8);

struct LinkDevice {
  static constexpr LinkKind kKind = LinkKind::kDevice;
  uint32_t lost;                 // 1: unhealthy; clients get DEVICE_LOST. 0: healthy again.
  uint32_t gpu;                  // The number of the GPU.
  std::array<char, 256> reason;  // "XID 79: the GPU has fallen off the bus", NUL-terminated.
};
static_assert(sizeof(LinkDevice) == 264);

struct LinkCounters {
  static constexpr LinkKind kKind = LinkKind::kCounters;
  uint32_t version;  // kCountersVersion
  uint32_t reserved;
};
static_assert(sizeof(LinkCounters) == 8);

// ---- encoding

template <typename Body>
size_t EncodeLink(LinkKind kind, const Body& body, Buffer* out) {
  static_assert(std::is_trivially_copyable_v<Body>);
  static_assert(sizeof(LinkHeader) + sizeof(Body) <= limits::kMessageBytes);
  const LinkHeader header{.magic = kLinkMagic,
                          .version = IsGreeting(kind) ? kLinkHelloVersion : kLinkMinVersion,
                          .kind = static_cast<uint16_t>(kind),
                          .size_bytes = static_cast<uint32_t>(sizeof(LinkHeader) + sizeof(Body)),
                          .reserved = 0};
  std::memcpy(out->data(), &header, sizeof header);
  std::memcpy(out->data() + sizeof header, &body, sizeof body);
  return sizeof header + sizeof body;
}

template <typename Body>
size_t EncodeLink(const Body& body, Buffer* out) {
  return EncodeLink(Body::kKind, body, out);
}

// ---- decoding: all kCorrupt when a rule is broken, kIncompatible for another version

// What to do about a plugin and a broker that have no version in common.
inline constexpr char kOtherLinkVersion[] =
    "finish the update of gpushm on this node, then make the pod again, so that its sidecar is of "
    "the plugin's release";

// kIncompatible: the plugin chose a version that this program does not speak.
Result<void> Agree(const LinkWelcome& welcome);

Result<LinkHeader> ParseLinkHeader(std::span<const std::byte> message);

// Field rules of each body; defined for every body type of this file.
template <typename Body>
Result<void> ValidateLink(const Body& body);

template <typename Body>
Result<Body> ParseLink(std::span<const std::byte> message) {
  if (message.size() != sizeof(LinkHeader) + sizeof(Body)) {
    return Fail(Code::kCorrupt,
                Concat("a link message has ", message.size(), " bytes, but must have ",
                       sizeof(LinkHeader) + sizeof(Body), " bytes"),
                kOtherPeer);
  }
  Body body;
  std::memcpy(&body, message.data() + sizeof(LinkHeader), sizeof body);
  if (auto valid = ValidateLink(body); !valid) return std::unexpected(valid.error());
  return body;
}

}  // namespace gpushm::protocol
