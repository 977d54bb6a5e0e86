// Being the successor of a broker that was killed (Ledger's members; see ledger.h).
#include <algorithm>
#include <utility>

#include "sidecar/broker/ledger.h"

namespace gpushm::broker {
namespace {

// nullopt if the pod does not declare it.
std::optional<Policy> DeclaredPolicy(const annotations::PodSpec& declared,
                                     const std::string& name) {
  if (const annotations::BufferSpec* spec = declared.Find(name)) return Policy::FromSpec(*spec);
  const auto signal = std::ranges::find(declared.signals, name, &annotations::SignalSpec::name);
  if (signal != declared.signals.end()) return Policy::FromSpec(*signal);
  return std::nullopt;
}

}  // namespace

Ledger::Restored Ledger::Restore(Kept kept, const annotations::PodSpec& declared) {
  Restored restored;
  RestoreGenerations(&kept, &restored);
  RestoreLeases(kept, &restored);
  std::map<std::string, const Buffer*> buffers;  // The last statement about each.
  for (const auto& [name, stated] : kept.buffers) buffers.insert_or_assign(name, &stated);
  for (const auto& [name, stated] : buffers) RestoreBuffer(name, *stated, declared, &restored);
  // An offer by cuIpc is removed with its owner. If the owner was not stated, it is gone.
  std::vector<std::string> ownerless;
  for (const auto& [number, generation] : generations_.all()) {
    const bool owned =
        generation.offerer_client == 0 || kept.clients.contains(generation.offerer_client);
    const auto buffer = buffers_.find(generation.buffer);
    if (!owned && buffer != buffers_.end() && buffer->second.current == number) {
      ownerless.push_back(generation.buffer);
    }
  }
  for (const std::string& name : ownerless) {
    Remove(name);
    restored.dropped.push_back(Concat("buffer ", name, ": the process that offered it is gone"));
  }
  std::vector<uint64_t> unused;
  for (const auto& [number, generation] : generations_.all()) {
    const auto buffer = buffers_.find(generation.buffer);
    const bool pending = buffer != buffers_.end() && buffer->second.pending == number;
    if (!pending) generations_.At(number).publisher_client = 0;
    const bool current = buffer != buffers_.end() && buffer->second.current == number;
    if (generation.leases == 0 && !pending && !current) unused.push_back(number);
  }
  for (const uint64_t number : unused) {
    restored.dropped.push_back(Concat("generation ", number, " of ", generations_.At(number).buffer,
                                      ": nothing refers to it"));
    ReleaseIfUnused(number);
  }
  // The earlier broker was killed between the end of the last lease and the end of the name.
  std::vector<std::string> names;
  for (const auto& [name, buffer] : buffers_) names.push_back(name);
  for (const std::string& name : names) RemoveIfUnused(name);
  return restored;
}

void Ledger::RestoreGenerations(Kept* kept, Restored* restored) {
  std::set<std::string> names;
  for (const auto& [name, buffer] : kept->buffers) names.insert(name);
  for (auto& [number, generation] : kept->generations) {
    const std::string name = generation.buffer;
    if (std::optional<uint64_t>& bytes = generation.content_bytes) {
      *bytes = std::min(*bytes, generation.memory.size_bytes);
    }
    UniqueFd description = std::move(generation.description);
    const uint64_t description_bytes = std::exchange(generation.description_bytes, 0);
    const std::string problem = names.contains(name) ? generations_.Problem(number, generation)
                                                     : "its buffer was not stated";
    if (!problem.empty()) {
      restored->dropped.push_back(Concat("generation ", number, " of ", name, ": ", problem));
      generations_.Refuse(number, std::move(generation));
      continue;
    }
    generations_.Restore(number, std::move(generation));
    if (!description) continue;
    if (auto room = generations_.budget().HasRoomForDescription(0, description_bytes); !room) {
      restored->dropped.push_back(Concat("the description of generation ", number, " of ", name,
                                         ": ", room.error().what()));
      continue;
    }
    PutDescription(number, std::move(description), description_bytes);
  }
}

void Ledger::RestoreLeases(const Kept& kept, Restored* restored) {
  for (Lease lease : kept.leases) {
    leases_.Skip(lease.id);
    const auto client = kept.clients.find(lease.client.id);
    const auto generation = generations_.all().find(lease.generation);
    std::string problem;
    if (client == kept.clients.end()) {
      problem = Concat("its client was not stated: client ", lease.client.id);
    } else if (generation == generations_.all().end()) {
      problem = Concat("its generation does not exist: generation ", lease.generation);
    } else {
      lease.client.container = client->second;
      lease.buffer = generation->second.buffer;
      problem = leases_.Restore(lease);
    }
    if (problem.empty()) {
      ++generations_.At(lease.generation).leases;
    } else {
      restored->dropped.push_back(Concat("lease ", lease.id, ": ", problem));
    }
  }
}

// An unpublished generation stays only while its publisher holds it, because nobody else can
// publish it.
bool Ledger::IsPublishable(uint64_t generation, const std::string& name) const {
  const auto found = generations_.all().find(generation);
  if (found == generations_.all().end() || found->second.buffer != name) return false;
  const uint64_t publisher = found->second.publisher_client;
  return std::ranges::any_of(leases_.ByName(name).leases, [&](uint64_t id) {
    const Lease& lease = leases_.At(id);
    return lease.generation == generation && lease.client.id == publisher && lease.writes();
  });
}

void Ledger::RestoreBuffer(const std::string& name, const Buffer& stated,
                           const annotations::PodSpec& pod, Restored* restored) {
  const std::optional<Policy> declared = DeclaredPolicy(pod, name);
  if (!stated.has_memory()) {
    const bool dropped = stated.content.state() == BufferState::kWriterDied;
    if (!declared || !dropped) return;  // Its generations are still held, or it was never finished.
    declared_.insert_or_assign(name, *declared);
    restored->settled.insert(name);
    return;
  }
  const auto current = generations_.all().find(stated.current);
  const bool has_current = current != generations_.all().end() && current->second.buffer == name;
  const bool has_pending = IsPublishable(stated.pending, name);
  const bool is_page = has_current && current->second.memory.is_page();
  const char* const problem = !has_current && !has_pending ? "its memory does not exist"
                              : !declared && stated.policy.declared
                                  ? "the pod does not declare it any more"
                              : declared && has_current && declared->signal != is_page
                                  ? "it is declared as something else now"
                              : !declared && stated.policy.creator.empty() ? "it has no creator"
                              : buffers_.size() >= limits_.buffers         ? "too many buffers"
                                                                           : nullptr;
  if (problem != nullptr) {
    restored->dropped.push_back(Concat("buffer ", name, ": ", problem));
    return;
  }
  Buffer& buffer = AddBuffer(name, declared.value_or(stated.policy));
  buffer.current = has_current ? stated.current : 0;
  buffer.pending = has_pending ? stated.pending : 0;
  buffer.gpu = generations_.At(has_current ? stated.current : stated.pending).memory.gpu;
  if (declared) {
    declared_.insert_or_assign(name, *declared);
    restored->settled.insert(name);
  }
  if (has_current) {
    buffer.content = stated.content;
    RestoreContent(pod.Find(name), name, &buffer);
  }
  Show(name);
}

void Ledger::RestoreContent(const annotations::BufferSpec* spec, const std::string& name,
                            Buffer* buffer) {
  std::set<uint64_t> writers;
  for (const uint64_t id : leases_.ByName(name).leases) {
    const Lease& lease = leases_.At(id);
    if (lease.generation == buffer->current && lease.writes()) writers.insert(lease.client.id);
  }
  buffer->content.Restore(writers, spec != nullptr && spec->StartsLoading(),
                          spec != nullptr && !spec->file.empty());
}

}  // namespace gpushm::broker
