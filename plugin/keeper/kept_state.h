// The kept state of one allocation: all that its broker stated over the link, so that a broker that
// was killed finds it again. The rules are those of contract/protocol/link.h.
//
// Pure bookkeeping: no sockets, no clock. It owns descriptors but does not inspect them: the caller
// has checked what they are.
//
// Invariants
//   (1) A lease's client and generation are kept, and so is a generation's buffer. This holds after
//       each statement, accepted or refused. A refused statement changes nothing.
//   (2) No more clients, buffers, generations and leases are kept than limits.h allows.
//   (3) A client has its pidfd even if the process is dead, because the next broker must learn of
//       it. A generation of transport vmm or host has its descriptor, the first that was sent.
//       Its blocks have theirs, in order.
//   (4) Only the destructor closes anything here. What is no longer kept appears in TakeDiscarded()
//       once, for a caller that may block, because closing what a broker sent can block.
//   (5) bytes() is the heap memory of all of it, without descriptors. It grows and shrinks with
//       each statement, and is 0 when nothing is kept.
//
// Invariant 1 does not cover two references. One is a buffer's current and pending generation,
// because the buffer is stated first. The other is a generation's publisher and offerer, who may
// have ended. The dump states 0 for a current or pending generation that does not exist. A
// publisher or offerer that is not in the dump is dead.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "contract/limits.h"
#include "contract/protocol/link.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "plugin/keeper/datagram.h"

namespace gpushm::plugin::keeper {

// Whether it is the sync page of a signal, barrier or ring: host memory.
inline bool IsSyncPage(const protocol::LinkGeneration& generation) {
  return generation.transport == Transport::kHost;
}

// Bytes that it takes of the GPU; for an offer, protocol::OfferedBytes.
inline uint64_t PhysicalBytes(const protocol::LinkGeneration& generation) {
  if (IsSyncPage(generation)) return 0;
  return protocol::OfferedBytes(Transport{generation.transport}, generation.size_bytes,
                                generation.mapped_bytes);
}

struct KeptCounts {
  uint32_t clients = 0;
  uint32_t buffers = 0;
  uint32_t generations = 0;
  uint32_t leases = 0;
  uint64_t pooled_bytes = 0;   // Allocated by the broker; held by the descriptors kept here.
  uint64_t offered_bytes = 0;  // Allocated by an application.
  friend bool operator==(const KeptCounts&, const KeptCounts&) = default;
};

// The two sums of KeptCounts for one GPU of the pod.
struct GpuBytes {
  uint64_t pooled = 0;
  uint64_t offered = 0;
  friend bool operator==(const GpuBytes&, const GpuBytes&) = default;
};

class KeptState {
 public:
  // Leases are by far the largest part, up to 65,536. Each one is linked into the lists of its
  // client and its generation without further allocations.
  struct Lease;
  struct LeaseLinks {
    Lease* before = nullptr;
    Lease* after = nullptr;
  };
  struct Client {
    protocol::LinkClient stated{};
    UniqueFd pidfd;
    Lease* leases = nullptr;  // First of the list; null if there is none.
    uint64_t round = 0;
  };
  struct Block {
    UniqueFd memory;
    uint64_t mapped_bytes = 0;
  };
  struct Generation {
    protocol::LinkGeneration stated{};
    UniqueFd memory;            // vmm
    std::vector<Block> blocks;  // As many as were stated so far; see stated.blocks.
    std::optional<uint64_t> content_bytes;
    Digest digest;  // Of these bytes, for the next broker.
    UniqueFd description;
    uint64_t description_bytes = 0;
    uint64_t description_round = 0;
    Lease* leases = nullptr;  // As above.
    uint64_t round = 0;
  };
  struct Buffer {
    protocol::LinkBuffer stated{};
    std::set<uint64_t> generations;
    uint64_t round = 0;
  };
  struct Lease {
    protocol::LinkLease stated{};
    LeaseLinks of_client;
    LeaseLinks of_generation;
    uint64_t round = 0;
  };

  // Statements, validated by ParseLink. kCorrupt: it breaks a rule. kExhausted: the error names the
  // limit.
  // A repeated statement replaces the former one. The descriptor of a known generation need not be
  // sent again, and is not taken if it is.
  Result<void> Apply(const protocol::LinkClient& client, UniqueFd pidfd);
  Result<void> Apply(const protocol::LinkBuffer& buffer);
  Result<void> Apply(const protocol::LinkGeneration& generation, UniqueFd memory);
  Result<void> Apply(const protocol::LinkBlock& block, UniqueFd memory);
  Result<void> Apply(const protocol::LinkContent& content);
  Result<void> Apply(const protocol::LinkDescription& description, UniqueFd memory);
  Result<void> Apply(const protocol::LinkLease& lease);
  // Dropping what is not kept has no effect.
  void Apply(const protocol::LinkDrop& drop);

  // A broker begins to state everything, and has ended. What it did not state in between is
  // forgotten. If it never reaches the end, the former state stays together with what it stated.
  void BeginAll() { ++round_; }
  void EndAll();

  void Clear();

  // The dump: statements in an order in which they can be applied, one at a time. Starts with a new
  // position; false at the end. It may or may not show what changes meanwhile. The descriptors stay
  // this object's.
  struct DumpPosition {
    enum class Stage {
      kClients,
      kBuffers,
      kGenerations,
      kBlocks,
      kContents,
      kDescriptions,
      kLeases,
      kDone
    };
    Stage stage = Stage::kClients;
    uint64_t id = 0;
    uint32_t block = 0;  // Of generation `id`, in kBlocks.
    std::string name;
  };
  bool Next(DumpPosition* position, Datagram* datagram) const;

  KeptCounts counts() const;
  uint64_t bytes() const;
  // `gpu`: the number among the pod's GPUs.
  const GpuBytes& gpu_bytes(size_t gpu) const { return gpu_bytes_.at(gpu); }
  const std::map<uint64_t, Client>& clients() const { return clients_; }
  const std::map<std::string, Buffer>& buffers() const { return buffers_; }
  const std::map<uint64_t, Generation>& generations() const { return generations_; }
  const std::map<uint64_t, Lease>& leases() const { return leases_; }

  // Descriptors that are no longer kept.
  std::vector<UniqueFd> TakeDiscarded() { return std::exchange(discarded_, {}); }

 private:
  using ClientAt = std::map<uint64_t, Client>::iterator;
  using BufferAt = std::map<std::string, Buffer>::iterator;
  using GenerationAt = std::map<uint64_t, Generation>::iterator;
  using LeaseAt = std::map<uint64_t, Lease>::iterator;

  ClientAt Forget(ClientAt client);
  BufferAt Forget(BufferAt buffer);
  GenerationAt Forget(GenerationAt generation);
  LeaseAt Forget(LeaseAt lease);
  template <typename Map>
  void Sweep(Map* map);
  void Discard(UniqueFd fd);
  uint64_t& BytesOf(const protocol::LinkGeneration& generation);
  void ForgetDescription(Generation* generation);
  void ForgetMemory(Generation* generation);

  std::map<uint64_t, Client> clients_;
  std::map<std::string, Buffer> buffers_;
  std::map<uint64_t, Generation> generations_;
  std::map<uint64_t, Lease> leases_;
  uint64_t round_ = 0;
  std::array<GpuBytes, limits::kPodGpus> gpu_bytes_{};
  uint64_t description_bytes_ = 0;
  size_t block_count_ = 0;  // Blocks that the generations have, or will have.
  std::vector<UniqueFd> discarded_;
};

}  // namespace gpushm::plugin::keeper
