// The link between a broker and the node's plugin: what the plugin's keeper must know so that a
// broker that was killed finds its buffers again. One link for each allocation of gpushm.io/memory,
// one SOCK_SEQPACKET socket behind it; the socket that was reached is the identity.
//
// Everything after the greeting is a *statement*: one datagram, no reply, either "this is so" (an
// upsert by its key) or "this is no more". The same statements go both ways:
//   broker -> plugin   as it happens; and all of them after each connect of a broker that has state
//   plugin -> broker   all that is kept, once, when a new broker asks for it in its Hello
// so a restarted plugin is told again, and a restarted broker is told what it said before it died.
//
//   broker: Hello(want_kept)     plugin: Hello(pool, GPU)
//   want_kept = 1 (it has nothing):  plugin: Client*, Buffer*, Generation*, Lease*, End
//   want_kept = 0 (it has state):    plugin forgets what it kept under this name: of another epoch
//                                    at once, of the same epoch with the broker's End
//   then, in both cases:  broker: Registry, Counters, Client*, Buffer*, Generation*, Lease*, End,
//   changes ...
//                         plugin: Device, whenever the GPU's health changes
//
// With the broker's End, which comes once, all that it has not stated since its Hello is no more.
// Killed before it, it leaves both: what it stated, and what was kept before.
//
// Order. A statement that names another (a lease its client and generation, a generation its
// buffer) comes after it; a Drop of a client or generation drops the leases on it, a Drop of a
// buffer its generations. So each prefix of a stream is a state that holds together: what a broker
// managed to send before it was killed is true. Three names may be of what is not there (yet, or
// any more): a buffer's current and pending generation, for which the plugin says 0 then, and a
// generation's publisher and offerer, who are dead then. Dropping what is not there is no breach.
//
// Invariants
//   (1) Every field is validated by ParseLink<>() before anybody sees it, as in messages.h.
//   (2) The broker states a change before it answers the client that asked for it. What a client
//       knows, the keeper knows, unless the link was down.
//   (3) Descriptors: Registry and Counters (a memfd), Client (its pidfd), Generation with transport
//   vmm. One
//       each; any other message with one is a breach. A generation that was stated before may come
//       without; what is behind its number (sizes, transport, handle) never changes. Where the
//       descriptor is certainly no GPU memory the plugin does not keep the generation, nor leases
//       on it; that is no breach, for containers make such descriptors.
//   (4) Neither side waits for the other after the greeting: what does not fit into the socket is
//       queued up to a bound, beyond it the link is closed and made anew.
//   (5) A link has at most the limits of limits.h; a broker that states more is told so in the log
//       and disconnected; what was kept of it goes.
//
// Versions. The plugin chooses in Welcome the highest one that both sides speak. A message carries
// the version that brought its kind, so that a peer of an older one can read what it knows.
//   1  all up to Device
//   2  Counters, after Registry: the segment of counters.h, which the plugin reads when it is asked
//   3  Generation with Transport::kHost, and leases on it; an older plugin is not told of them
//   4  Content, after its Generation;
//      kFlagUntilUnused of Buffer; an older plugin's next broker keeps such a name
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#include "contract/limits.h"
#include "contract/protocol/messages.h"

namespace gpushm::protocol {

inline constexpr uint32_t kLinkMagic = 0x4b4c5347;  // "GSLK"
inline constexpr uint16_t kLinkMinVersion = 1;
inline constexpr uint16_t kLinkMaxVersion = 4;
// That brought Transport::kHost.
inline constexpr uint16_t kLinkPagesVersion = 3;
// That brought kContent.
inline constexpr uint16_t kLinkContentVersion = 4;
// That brought kFlagUntilUnused.
inline constexpr uint16_t kLinkUntilUnusedVersion = 4;

// The socket's name in its folder, and where the sidecar has that folder mounted.
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
  kEnd = 9,  // Of all statements about what there is.
  kDevice = 10,
  kCounters = 11,  // + memfd
  kContent = 12,
};
inline constexpr uint16_t kMaxLinkKind = 12;

// That brought it.
constexpr uint16_t VersionOf(LinkKind kind) {
  return kind == LinkKind::kContent ? kLinkContentVersion : kind == LinkKind::kCounters ? 2 : 1;
}

struct LinkHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t kind;
  uint32_t size_bytes;  // Of the whole message.
  uint32_t reserved;
};
static_assert(sizeof(LinkHeader) == 16);

struct LinkHello {
  uint16_t min_version;
  uint16_t max_version;
  uint32_t want_kept;  // 1: it has nothing and asks for what is kept. 0: it has state.
  uint64_t epoch;      // Of this broker.
  NameField program;   // Free text for logs, NUL-terminated: "gpushm-broker 0.1.0".
};
static_assert(sizeof(LinkHello) == 80);

struct LinkWelcome {
  uint16_t version;
  uint16_t reserved;
  uint32_t device_lost;              // 1: the GPU is unhealthy now.
  std::array<uint8_t, 16> gpu_uuid;  // The GPU that this allocation is bound to.
  uint64_t pool_bytes;               // What its IDs stand for.
  NameField allocation;              // "m0000"
  // What follows where it was asked for; 0 otherwise.
  uint32_t clients;
  uint32_t buffers;
  uint32_t generations;
  uint32_t leases;
};
static_assert(sizeof(LinkWelcome) == 112);

struct LinkRegistry {
  uint64_t epoch;
};
static_assert(sizeof(LinkRegistry) == 8);

// A process that holds leases. The token lets it resume its connection (messages.h, Hello).
struct LinkClient {
  uint64_t client_id;
  std::array<uint8_t, 16> token;
  NameField container;
};
static_assert(sizeof(LinkClient) == 88);

// A name and its rules. Lists of containers are not in it: only declared buffers have them, and a
// broker reads those from its environment again.
struct LinkBuffer {
  NameField name;
  NameField creator;        // Container; empty where it is declared.
  uint32_t declared;        // 0 or 1
  uint32_t flags;           // kFlagWritersAll, kFlagOneWriter, kFlagUntilUnused
  uint32_t on_writer_exit;  // OnWriterExit
  uint32_t state;           // registry::BufferState
  uint64_t current;         // Generation; 0: none published yet.
  uint64_t pending;         // Generation; 0: none unpublished.
  // While it loads, how far it is. Once it is there, the current generation's content, 0 where
  // nobody said it: for plugins that know no kContent.
  uint64_t loaded_bytes;
};
static_assert(sizeof(LinkBuffer) == 168);

struct LinkGeneration {
  NameField name;  // Of its buffer.
  uint64_t generation;
  uint64_t size_bytes;
  uint64_t mapped_bytes;
  uint32_t transport;  // Transport; but for kCuIpc the descriptor comes with this message.
  uint32_t pooled;     // 1: the broker allocated it. 0: it was offered.
  int32_t offerer_pid;
  uint32_t reserved;
  uint64_t publisher_client;  // Unpublished: whose it is. 0: published.
  uint64_t offerer_client;    // kCuIpc: goes with this client. Else 0.
  int64_t created_unix_ns;
  uint64_t cuipc_offset;
  std::array<uint8_t, 64> cuipc_handle;
};
static_assert(sizeof(LinkGeneration) == 200);

// How many bytes of a generation are content, where somebody said it; else all of them.
struct LinkContent {
  uint64_t generation;
  uint64_t content_bytes;
};
static_assert(sizeof(LinkContent) == 16);

struct LinkLease {
  uint64_t lease_id;
  uint64_t client_id;
  uint64_t generation;
  int64_t since_unix_ns;
  uint32_t access;    // WireAccess
  uint32_t peer_way;  // PeerWay; 0 before version 3.
};
static_assert(sizeof(LinkLease) == 40);

enum class LinkDropped : uint32_t { kClient = 1, kBuffer = 2, kGeneration = 3, kLease = 4 };

struct LinkDrop {
  uint32_t what;  // LinkDropped
  uint32_t reserved;
  uint64_t id;     // Client, generation or lease; 0 for a buffer.
  NameField name;  // Of a buffer; else empty.
};
static_assert(sizeof(LinkDrop) == 80);

struct LinkEnd {
  uint64_t reserved;
};
static_assert(sizeof(LinkEnd) == 8);

struct LinkDevice {
  uint32_t lost;  // 1: unhealthy; clients get DEVICE_LOST. 0: healthy again.
  uint32_t reserved;
  std::array<char, 256> reason;  // "XID 79: the GPU has fallen off the bus", NUL-terminated.
};
static_assert(sizeof(LinkDevice) == 264);

struct LinkCounters {
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
                          .version = VersionOf(kind),
                          .kind = static_cast<uint16_t>(kind),
                          .size_bytes = static_cast<uint32_t>(sizeof(LinkHeader) + sizeof(Body)),
                          .reserved = 0};
  std::memcpy(out->data(), &header, sizeof header);
  std::memcpy(out->data() + sizeof header, &body, sizeof body);
  return sizeof header + sizeof body;
}

// ---- decoding: all kCorrupt when a rule is broken, kIncompatible for another version

Result<LinkHeader> ParseLinkHeader(std::span<const std::byte> message);

// Field rules of each body; defined for every body type of this file.
template <typename Body>
Result<void> ValidateLink(const Body& body);

template <typename Body>
Result<Body> ParseLink(std::span<const std::byte> message) {
  if (message.size() != sizeof(LinkHeader) + sizeof(Body)) {
    return Fail(Code::kCorrupt, Concat("a link message of ", message.size(), " bytes, ",
                                       sizeof(LinkHeader) + sizeof(Body), " expected"));
  }
  Body body;
  std::memcpy(&body, message.data() + sizeof(LinkHeader), sizeof body);
  if (auto valid = ValidateLink(body); !valid) return std::unexpected(valid.error());
  return body;
}

}  // namespace gpushm::protocol
