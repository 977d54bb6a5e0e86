// Who holds what: the leases of a pod, and an index of them by client, container and name, so that
// no query and no end of a client walks over all of them.
//
// Invariants
//   (1) A lease belongs to one client and one generation, and to the generation's name.
//   (2) A number is used once. Those of an earlier broker are below all later ones.
//   (3) No more leases than allowed exist, and each container keeps a share of them.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "contract/protocol/messages.h"
#include "platform/base/status.h"
#include "platform/driver/device.h"

namespace gpushm::broker {

// Numbers of generations, leases and clients stay below this.
inline constexpr uint64_t kMaxNumber = uint64_t{1} << 63;

struct Client {
  uint64_t id = 0;
  std::string container;
};

struct Lease {
  uint64_t id = 0;
  Client client;
  std::string buffer;
  uint64_t generation = 0;
  Access access = Access::kRead;
  int64_t since_unix_ns = 0;
  protocol::PeerWay peer_way = protocol::PeerWay::kNone;

  bool writes() const { return access == Access::kReadWrite; }
};

class Leases {
 public:
  struct OfClient {
    std::set<uint64_t> leases;
    uint64_t sum = 0;  // Of their numbers, modulo 2^64.
  };
  // For a name, whatever buffers it has belonged to.
  struct OfName {
    std::set<uint64_t> leases;
    uint32_t writers = 0;  // Number of write leases among them.
  };

  // `containers`: how many the broker serves.
  Leases(uint32_t at_most, uint32_t containers) : at_most_(at_most), containers_(containers) {}

  // kExhausted. A container may also use what the others' shares do not reserve.
  Result<void> HasRoom(const Client& client) const;
  // Gives it the next number.
  const Lease& Add(Lease lease);
  // One of an earlier broker, with its number. Returns why it cannot be; empty: it is there now.
  std::string Restore(const Lease& lease);
  // An earlier broker has used that number.
  void Skip(uint64_t id);
  void End(uint64_t id);

  const Lease& At(uint64_t id) const { return leases_.at(id); }
  // kNotFound if the client has no such lease.
  Result<const Lease*> Find(const Client& client, uint64_t id) const;
  const std::map<uint64_t, Lease>& all() const { return leases_; }
  const OfClient& ByClient(uint64_t client) const;
  const OfName& ByName(const std::string& name) const;
  // In the order of their numbers. An empty name: on all.
  std::vector<const Lease*> Holders(const std::string& name, uint64_t after, size_t at_most) const;

 private:
  const Lease& Enter(Lease lease);

  uint32_t at_most_;
  uint32_t containers_;
  uint64_t next_ = 1;
  std::map<uint64_t, Lease> leases_;
  std::map<uint64_t, OfClient> by_client_;
  std::map<std::string, OfName> by_name_;
  std::map<std::string, uint32_t> by_container_;  // Their number.
};

}  // namespace gpushm::broker
