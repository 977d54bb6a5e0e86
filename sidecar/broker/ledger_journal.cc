// What the ledger tells a successor (Ledger's members; see ledger.h, invariant 6).
//
// A load by the broker that is under way is stated as FAILED: that is how it ends if the broker
// does. A name that is gone stays stated, without generations of its own, while one of them is
// still held, and for ever if the pod declares it: so the successor does not make it anew. Its
// state is WRITER_DIED then, because only that takes a declared buffer away, and because a name
// whose memory never came is told without generations, too.
#include <algorithm>

#include "sidecar/broker/ledger.h"

namespace gpushm::broker {

using protocol::LinkDropped;

bool Ledger::HasGenerations(const std::string& name) const {
  return std::any_of(generations_.begin(), generations_.end(),
                     [&](const auto& item) { return item.second.buffer == name; });
}

bool Ledger::IsStated(const std::string& name) const {
  const auto buffer = buffers_.find(name);
  return (buffer != buffers_.end() && (buffer->second.current | buffer->second.pending) != 0) ||
         declared_.contains(name) || HasGenerations(name);
}

void Ledger::NoteBuffer(const std::string& name) {
  if (!journaling_) return;
  if (IsStated(name)) {
    statements_.push_back({Describe(name)});
  } else {
    NoteDrop(LinkDropped::kBuffer, 0, name);
  }
}

void Ledger::NoteGeneration(uint64_t generation) {
  if (!journaling_) return;
  const Generation& known = generations_.at(generation);
  statements_.push_back(
      {Describe(generation, known), known.memory.descriptor.get(), known.memory.is_page()});
}

void Ledger::NoteLease(const Lease& lease) {
  if (!journaling_) return;
  statements_.push_back({Describe(lease), -1, generations_.at(lease.generation).memory.is_page()});
}

void Ledger::NoteDrop(LinkDropped what, uint64_t id, const std::string& name) {
  if (!journaling_) return;
  protocol::LinkDrop drop{};
  drop.what = static_cast<uint32_t>(what);
  drop.id = id;
  drop.name = protocol::ToNameField(name);
  statements_.push_back({drop});
}

// The last generation of a name that is gone takes the name along.
void Ledger::NoteReleased(uint64_t generation, const std::string& name) {
  if (!journaling_) return;
  if (IsStated(name)) {
    NoteDrop(LinkDropped::kGeneration, generation);
  } else {
    NoteDrop(LinkDropped::kBuffer, 0, name);
  }
}

protocol::LinkBuffer Ledger::Describe(const std::string& name) const {
  protocol::LinkBuffer stated{};
  stated.name = protocol::ToNameField(name);
  stated.state = static_cast<uint32_t>(BufferState::kWriterDied);
  const auto found = buffers_.find(name);
  const bool there =
      found != buffers_.end() && (found->second.current | found->second.pending) != 0;
  const auto declared = declared_.find(name);
  const Policy* const policy = there                         ? &found->second.policy
                               : declared != declared_.end() ? &declared->second
                                                             : nullptr;
  if (policy != nullptr) {
    stated.creator = protocol::ToNameField(policy->creator);
    stated.declared = policy->declared ? 1 : 0;
    stated.flags = (policy->writers_all ? protocol::kFlagWritersAll : 0) |
                   (policy->one_writer ? protocol::kFlagOneWriter : 0);
    stated.on_writer_exit = static_cast<uint32_t>(policy->on_writer_exit);
  }
  if (!there) return stated;
  const Buffer& buffer = found->second;
  stated.state = static_cast<uint32_t>(buffer.transferring ? BufferState::kFailed : buffer.state);
  stated.current = buffer.current;
  stated.pending = buffer.pending;
  stated.loaded_bytes = buffer.loaded_bytes;
  return stated;
}

protocol::LinkGeneration Ledger::Describe(uint64_t number, const Generation& generation) {
  const Memory& memory = generation.memory;
  return {.name = protocol::ToNameField(generation.buffer),
          .generation = number,
          .size_bytes = memory.size_bytes,
          .mapped_bytes = memory.mapped_bytes,
          .transport = static_cast<uint32_t>(memory.transport),
          .pooled = memory.pooled ? 1u : 0u,
          .offerer_pid = memory.offerer_pid,
          .reserved = 0,
          .publisher_client = generation.publisher_client,
          .offerer_client = generation.offerer_client,
          .created_unix_ns = generation.created_unix_ns,
          .cuipc_offset = memory.cuipc_offset,
          .cuipc_handle = memory.cuipc_handle};
}

protocol::LinkLease Ledger::Describe(const Lease& lease) {
  return {.lease_id = lease.id,
          .client_id = lease.client.id,
          .generation = lease.generation,
          .since_unix_ns = lease.since_unix_ns,
          .access = static_cast<uint32_t>(lease.access),
          .peer_way = static_cast<uint32_t>(lease.peer_way)};
}

std::vector<Statement> Ledger::Everything() const {
  std::set<std::string> names;
  for (const auto& [name, buffer] : buffers_) {
    if ((buffer.current | buffer.pending) != 0) names.insert(name);
  }
  for (const auto& [name, policy] : declared_) names.insert(name);
  for (const auto& [number, generation] : generations_) names.insert(generation.buffer);
  std::vector<Statement> all;
  all.reserve(names.size() + generations_.size() + leases_.size());
  for (const std::string& name : names) all.push_back({Describe(name)});
  for (const auto& [number, generation] : generations_) {
    all.push_back({Describe(number, generation), generation.memory.descriptor.get(),
                   generation.memory.is_page()});
  }
  for (const auto& [id, lease] : leases_) {
    all.push_back({Describe(lease), -1, generations_.at(lease.generation).memory.is_page()});
  }
  return all;
}

}  // namespace gpushm::broker
