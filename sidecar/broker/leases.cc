#include "sidecar/broker/leases.h"

#include <algorithm>
#include <utility>

namespace gpushm::broker {
namespace {

// Leases that each container can have, whatever the others do; fewer if there are many containers.
constexpr uint32_t kReservedLeases = 256;

}  // namespace

Result<void> Leases::HasRoom(const Client& client) const {
  const uint32_t count =
      std::max({containers_, static_cast<uint32_t>(by_container_.size()), uint32_t{1}});
  const uint32_t reserved = std::min(kReservedLeases, at_most_ / count);
  const auto own = by_container_.find(client.container);
  const uint32_t has = own == by_container_.end() ? 0 : own->second;
  if (has < reserved && leases_.size() < at_most_) return {};
  uint64_t taken = uint64_t{reserved} * (count - by_container_.size());
  for (const auto& [container, leases] : by_container_) taken += std::max(leases, reserved);
  if (taken < at_most_) return {};
  return Fail(Code::kExhausted,
              Concat("container ", '"', client.container, '"', " has ", has,
                     " leases; the pod has ", leases_.size(), " of at most ", at_most_,
                     "; each container keeps a share of ", reserved),
              "detach buffers that are not used; see docs/reference/limits.md");
}

const Lease& Leases::Enter(Lease lease) {
  const uint64_t id = lease.id;
  const Lease& entered = leases_.emplace(id, std::move(lease)).first->second;
  OfClient& of_client = by_client_[entered.client.id];
  of_client.leases.insert(id);
  of_client.sum += id;
  OfName& of_name = by_name_[entered.buffer];
  of_name.leases.insert(id);
  if (entered.writes()) ++of_name.writers;
  ++by_container_[entered.client.container];
  return entered;
}

const Lease& Leases::Add(Lease lease) {
  lease.id = next_++;
  return Enter(std::move(lease));
}

std::string Leases::Restore(const Lease& lease) {
  if (lease.id >= kMaxNumber) return "invalid number (never issued by a broker)";
  if (leases_.contains(lease.id)) return "duplicate number";
  if (leases_.size() >= at_most_) return Concat("too many leases: the limit is ", at_most_);
  Enter(lease);
  return {};
}

void Leases::Skip(uint64_t id) {
  if (id < kMaxNumber) next_ = std::max(next_, id + 1);
}

void Leases::End(uint64_t id) {
  const auto lease = leases_.find(id);
  GPUSHM_ASSERT(lease != leases_.end());  // It ends once.
  const Lease& ended = lease->second;
  const auto of_client = by_client_.find(ended.client.id);
  of_client->second.leases.erase(id);
  of_client->second.sum -= id;
  if (of_client->second.leases.empty()) by_client_.erase(of_client);
  const auto of_name = by_name_.find(ended.buffer);
  of_name->second.leases.erase(id);
  if (ended.writes()) --of_name->second.writers;
  if (of_name->second.leases.empty()) by_name_.erase(of_name);
  const auto of_container = by_container_.find(ended.client.container);
  if (--of_container->second == 0) by_container_.erase(of_container);
  leases_.erase(lease);
}

Result<const Lease*> Leases::Find(const Client& client, uint64_t id) const {
  const auto lease = leases_.find(id);
  if (lease == leases_.end() || lease->second.client.id != client.id) {
    return Fail(Code::kNotFound, Concat("this client has no lease ", id));
  }
  return &lease->second;
}

const Leases::OfClient& Leases::ByClient(uint64_t client) const {
  static const OfClient kNothing;
  const auto found = by_client_.find(client);
  return found == by_client_.end() ? kNothing : found->second;
}

const Leases::OfName& Leases::ByName(const std::string& name) const {
  static const OfName kNothing;
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? kNothing : found->second;
}

std::vector<const Lease*> Leases::Holders(const std::string& name, uint64_t after,
                                          size_t at_most) const {
  std::vector<const Lease*> holders;
  if (name.empty()) {
    for (auto lease = leases_.upper_bound(after);
         lease != leases_.end() && holders.size() < at_most; ++lease) {
      holders.push_back(&lease->second);
    }
    return holders;
  }
  const std::set<uint64_t>& ids = ByName(name).leases;
  for (auto id = ids.upper_bound(after); id != ids.end() && holders.size() < at_most; ++id) {
    holders.push_back(&leases_.at(*id));
  }
  return holders;
}

}  // namespace gpushm::broker
