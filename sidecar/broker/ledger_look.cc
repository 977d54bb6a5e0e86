// What the ledger answers without changing (Ledger's members; see ledger.h).
#include "contract/annotations/keys.h"
#include "sidecar/broker/ledger.h"

namespace gpushm::broker {

Policy Policy::FromSpec(const config::BufferSpec& spec) {
  Policy policy;
  policy.declared = true;
  policy.containers.insert(spec.containers.begin(), spec.containers.end());
  policy.writers.insert(spec.writers.begin(), spec.writers.end());
  policy.writers_all = spec.writers.empty();
  policy.read_only = spec.access == config::Access::kReadOnly;
  policy.one_writer = spec.access == config::Access::kOneWriter;
  policy.loads = spec.loads;
  switch (spec.on_writer_exit) {
    case config::OnWriterExit::kMark:
      policy.on_writer_exit = protocol::OnWriterExit::kMark;
      break;
    case config::OnWriterExit::kKeep:
      policy.on_writer_exit = protocol::OnWriterExit::kKeep;
      break;
    case config::OnWriterExit::kDrop:
      policy.on_writer_exit = protocol::OnWriterExit::kDrop;
      break;
  }
  return policy;
}

Policy Policy::FromSpec(const config::SignalSpec& spec) {
  Policy policy;
  policy.declared = true;
  policy.signal = true;
  policy.containers.insert(spec.containers.begin(), spec.containers.end());
  policy.writers.insert(spec.writers.begin(), spec.writers.end());
  policy.writers_all = spec.writers.empty();
  policy.one_writer = true;
  policy.on_writer_exit = protocol::OnWriterExit::kKeep;  // Its cell says who is gone.
  return policy;
}

std::string Policy::Annotation(const std::string& name) const {
  return Concat(signal ? config::kSignalsPrefix : config::kBuffersPrefix, name);
}

bool Policy::MayAttach(const std::string& container) const {
  return containers.empty() || containers.contains(container);
}

bool Policy::MayWrite(const std::string& container) const {
  if (read_only || !MayAttach(container)) return false;
  return writers_all || writers.contains(container) || (!declared && container == creator);
}

// ---- looking

std::vector<const Lease*> Ledger::Holders(const std::string& name, uint64_t after_lease_id,
                                          size_t at_most) const {
  std::vector<const Lease*> holders;
  if (name.empty()) {
    for (auto lease = leases_.upper_bound(after_lease_id);
         lease != leases_.end() && holders.size() < at_most; ++lease) {
      holders.push_back(&lease->second);
    }
    return holders;
  }
  const std::set<uint64_t>& leases = holdings_.Name(name).leases;
  for (auto id = leases.upper_bound(after_lease_id); id != leases.end() && holders.size() < at_most;
       ++id) {
    holders.push_back(&leases_.at(*id));
  }
  return holders;
}

bool Ledger::HasLeases(uint64_t client_id) const {
  const Holdings::OfClient& held = holdings_.Client(client_id);
  return !held.leases.empty() || !held.generations.empty();
}

Ledger::Held Ledger::HeldBy(uint64_t client_id) const {
  const Holdings::OfClient& held = holdings_.Client(client_id);
  return {.leases = static_cast<uint32_t>(held.leases.size()), .lease_sum = held.lease_sum};
}

std::vector<registry::BufferRecord> Ledger::Records() const {
  std::vector<registry::BufferRecord> records;
  for (const auto& [name, buffer] : buffers_) {
    if (buffer.current != 0) records.push_back(RecordOf(name, buffer));
  }
  return records;
}

std::vector<Memory> Ledger::LetGo() {
  std::vector<Memory> all = TakeFreed();
  for (auto& [number, generation] : generations_) all.push_back(std::move(generation.memory));
  return all;
}

}  // namespace gpushm::broker
