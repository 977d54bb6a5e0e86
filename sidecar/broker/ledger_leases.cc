// Leases: how many there may be, and their beginning and end (Ledger's members; see ledger.h).
#include <algorithm>

#include "sidecar/broker/ledger.h"

namespace gpushm::broker {
namespace {

// Leases that every container can have whatever the others do; fewer with many containers.
constexpr uint32_t kReservedLeases = 256;

}  // namespace

// As the server counts connections: what other containers have not used of their shares is theirs.
Result<void> Ledger::HasRoomForLease(const Client& client, bool wanted) const {
  if (!wanted) return {};
  const std::map<std::string, uint32_t>& containers = holdings_.containers();
  const uint32_t count =
      std::max({limits_.containers, static_cast<uint32_t>(containers.size()), uint32_t{1}});
  const uint32_t reserved = std::min(kReservedLeases, limits_.leases / count);
  const auto own = containers.find(client.container);
  const uint32_t has = own == containers.end() ? 0 : own->second;
  if (has < reserved && leases_.size() < limits_.leases) return {};
  uint64_t taken = uint64_t{reserved} * (count - containers.size());
  for (const auto& [container, leases] : containers) taken += std::max(leases, reserved);
  if (taken < limits_.leases) return {};
  return Fail(Code::kExhausted,
              Concat("container ", '"', client.container, '"', " has ", has, " leases, the pod ",
                     leases_.size(), " of ", limits_.leases,
                     ", and each container keeps a share of ", reserved),
              "detach what is not used; docs/reference/limits.md");
}

Result<Lease*> Ledger::FindLease(const Client& client, uint64_t lease_id) {
  const auto lease = leases_.find(lease_id);
  if (lease == leases_.end() || lease->second.client.id != client.id) {
    return Fail(Code::kNotFound, Concat("this client has no lease ", lease_id));
  }
  return &lease->second;
}

bool Ledger::HasWriter(const std::string& name) const {
  const auto buffer = buffers_.find(name);
  if (buffer != buffers_.end() && buffer->second.writer_reserved) return true;
  return holdings_.Name(name).writers > 0;
}

uint64_t Ledger::AddLease(const Client& client, const std::string& name, uint64_t generation,
                          Access access, int64_t now_unix_ns, protocol::PeerWay way) {
  const uint64_t id = next_lease_++;
  const auto [lease, added] =
      leases_.emplace(id, Lease{id, client, name, generation, access, now_unix_ns, way});
  holdings_.AddLease(id, client.id, client.container, name, access == Access::kReadWrite);
  ++generations_.at(generation).leases;
  NoteLease(lease->second);
  return id;
}

void Ledger::EndLease(std::map<uint64_t, Lease>::iterator lease, bool died) {
  const uint64_t generation = lease->second.generation;
  const Memory& memory = generations_.at(generation).memory;
  if (memory.is_page() && lease->second.access == Access::kReadWrite) {
    parted_.push_back({lease->first, lease->second.buffer, died, memory.descriptor.get()});
  }
  if (!died) NoteDrop(protocol::LinkDropped::kLease, lease->first);  // Else with its client.
  const Lease& ended = lease->second;
  holdings_.EndLease(ended.id, ended.client.id, ended.client.container, ended.buffer,
                     ended.access == Access::kReadWrite);
  leases_.erase(lease);
  --generations_.at(generation).leases;
  ReleaseIfUnused(generation);
}

}  // namespace gpushm::broker
