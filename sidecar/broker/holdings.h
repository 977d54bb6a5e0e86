// An index of who holds what, by client, by container and by name, so that no query and no end of a
// client has to walk over all leases of a pod. It repeats what the ledger's maps hold.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace gpushm::broker {

class Holdings {
 public:
  struct OfClient {
    std::set<uint64_t> leases;
    uint64_t lease_sum = 0;  // Sum of their numbers, modulo 2^64.
    // Those that it offered by a handle, which are removed with it.
    std::set<uint64_t> generations;
  };
  // For a name, whatever buffers it has belonged to.
  struct OfName {
    std::set<uint64_t> leases;
    uint32_t writers = 0;  // Number of write leases among them.
    std::set<uint64_t> generations;
  };

  void AddLease(uint64_t id, uint64_t client, const std::string& container, const std::string& name,
                bool writes) {
    OfClient& of_client = clients_[client];
    of_client.leases.insert(id);
    of_client.lease_sum += id;
    OfName& of_name = names_[name];
    of_name.leases.insert(id);
    if (writes) ++of_name.writers;
    ++containers_[container];
  }
  void EndLease(uint64_t id, uint64_t client, const std::string& container, const std::string& name,
                bool writes) {
    OfClient& of_client = clients_.at(client);
    of_client.leases.erase(id);
    of_client.lease_sum -= id;
    DropIfEmpty(client);
    OfName& of_name = names_.at(name);
    of_name.leases.erase(id);
    if (writes) --of_name.writers;
    DropIfEmpty(name);
    const auto of_container = containers_.find(container);
    if (--of_container->second == 0) containers_.erase(of_container);
  }

  // `offerer`: see OfClient; 0 for none.
  void AddGeneration(uint64_t number, const std::string& name, uint64_t offerer) {
    names_[name].generations.insert(number);
    if (offerer != 0) clients_[offerer].generations.insert(number);
  }
  void EndGeneration(uint64_t number, const std::string& name, uint64_t offerer) {
    names_.at(name).generations.erase(number);
    DropIfEmpty(name);
    if (offerer == 0) return;
    clients_.at(offerer).generations.erase(number);
    DropIfEmpty(offerer);
  }

  const OfClient& Client(uint64_t client) const {
    static const OfClient kNothing;
    const auto found = clients_.find(client);
    return found == clients_.end() ? kNothing : found->second;
  }
  const OfName& Name(const std::string& name) const {
    static const OfName kNothing;
    const auto found = names_.find(name);
    return found == names_.end() ? kNothing : found->second;
  }
  const std::map<std::string, OfName>& names() const { return names_; }
  // Number of leases for each container that has any.
  const std::map<std::string, uint32_t>& containers() const { return containers_; }

 private:
  void DropIfEmpty(uint64_t client) {
    const auto found = clients_.find(client);
    if (found->second.leases.empty() && found->second.generations.empty()) clients_.erase(found);
  }
  void DropIfEmpty(const std::string& name) {
    const auto found = names_.find(name);
    if (found->second.leases.empty() && found->second.generations.empty()) names_.erase(found);
  }

  std::map<uint64_t, OfClient> clients_;
  std::map<std::string, OfName> names_;
  std::map<std::string, uint32_t> containers_;
};

}  // namespace gpushm::broker
