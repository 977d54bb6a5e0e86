// What the plugin keeps for one allocation: all that its broker stated over the link, so that a
// broker that was killed finds it again. The rules are those of contract/protocol/link.h.
//
// Pure bookkeeping: no socket, no clock. It owns descriptors and does not look at them: who calls
// has checked what they are.
//
// Invariants
//   (1) A lease's client and generation are kept, a generation's buffer is. After each statement,
//       taken or refused; a refused one changes nothing.
//   (2) No more clients, buffers, generations and leases than limits.h says.
//   (3) A client has its pidfd, also when the process is dead: the next broker must learn of it. A
//       generation of transport vmm or host has its descriptor, the first that was given.
//   (4) Nothing is closed here but by the destructor: what is not kept any more is in TakeRefuse()
//       once, for somebody who may be held up. Closing what a broker sent can block.
//   (5) bytes() is what all of it takes of the heap, descriptors aside: it grows and shrinks with
//       each statement, and is 0 when there is nothing.
//
// Two references are not held to (1): a buffer's current and pending generation, because the
// buffer comes first, and a generation's publisher and offerer, who may be gone. The dump says 0
// for a current or pending generation that is not there; a publisher or offerer that the dump does
// not have is dead.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "contract/protocol/link.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm::plugin {

// The page of a signal, barrier or ring: host memory.
inline bool IsPage(const protocol::LinkGeneration& generation) {
  return generation.transport == static_cast<uint32_t>(protocol::Transport::kHost);
}

// What it takes of the GPU; of an offer, protocol::OfferedBytes.
inline uint64_t PhysicalBytes(const protocol::LinkGeneration& generation) {
  if (IsPage(generation)) return 0;
  return protocol::OfferedBytes(static_cast<protocol::Transport>(generation.transport),
                                generation.size_bytes, generation.mapped_bytes);
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

class Kept {
 public:
  // Leases are by far the most of what is kept, 65,536 of them: each is in the list of its client
  // and in that of its generation by links of its own, without further allocations.
  struct Lease;
  struct LeaseLinks {
    Lease* before = nullptr;
    Lease* after = nullptr;
  };
  struct Client {
    protocol::LinkClient stated{};
    UniqueFd pidfd;
    Lease* leases = nullptr;  // The first one; null: it has none.
    uint64_t round = 0;
  };
  struct Generation {
    protocol::LinkGeneration stated{};
    UniqueFd memory;  // vmm
    std::optional<uint64_t> content_bytes;
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

  // Statements, validated by ParseLink. kCorrupt: it breaks a rule. kExhausted: a limit, by name.
  // A repeated statement replaces what was said before; the descriptor of a known generation need
  // not come again, and is not taken if it does.
  Result<void> Apply(const protocol::LinkClient& client, UniqueFd pidfd);
  Result<void> Apply(const protocol::LinkBuffer& buffer);
  Result<void> Apply(const protocol::LinkGeneration& generation, UniqueFd memory);
  Result<void> Apply(const protocol::LinkContent& content);
  Result<void> Apply(const protocol::LinkLease& lease);
  // What is not there is no more already.
  void Apply(const protocol::LinkDrop& drop);

  // A broker begins to state what there is, and has ended: what it left out is no more. If it never
  // comes to the end, what there was before stays beside what it stated.
  void BeginAll() { ++round_; }
  void EndAll();

  void Clear();

  // The dump: statements in an order in which they can be applied, one at a time. Begins with a
  // cursor as made; false at the end. What changes meanwhile is seen or not. What its reader, who
  // speaks `version` of the link, does not know is left out.
  struct Cursor {
    enum class Stage { kClients, kBuffers, kGenerations, kContents, kLeases, kDone };
    Stage stage = Stage::kClients;
    uint64_t id = 0;
    std::string name;
  };
  struct Statement {
    protocol::LinkKind kind{};
    protocol::Buffer bytes;
    size_t size_bytes = 0;
    int descriptor = -1;  // Stays this object's.
  };
  bool Next(Cursor* cursor, uint16_t version, Statement* statement) const;

  KeptCounts counts() const;
  uint64_t bytes() const;
  const std::map<uint64_t, Client>& clients() const { return clients_; }
  const std::map<std::string, Buffer>& buffers() const { return buffers_; }
  const std::map<uint64_t, Generation>& generations() const { return generations_; }
  const std::map<uint64_t, Lease>& leases() const { return leases_; }

  // Descriptors that are kept no more.
  std::vector<UniqueFd> TakeRefuse() { return std::exchange(refuse_, {}); }

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
  void Refuse(UniqueFd fd);

  std::map<uint64_t, Client> clients_;
  std::map<std::string, Buffer> buffers_;
  std::map<uint64_t, Generation> generations_;
  std::map<uint64_t, Lease> leases_;
  uint64_t round_ = 0;
  uint64_t pooled_bytes_ = 0;
  uint64_t offered_bytes_ = 0;
  std::vector<UniqueFd> refuse_;
};

}  // namespace gpushm::plugin
