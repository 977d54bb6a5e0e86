// Being the successor of a broker that was killed (Ledger's members; see ledger.h). The incoming
// statements were validated field by field (link.h). This file checks the rules between fields.
#include <algorithm>
#include <utility>

#include "sidecar/broker/ledger.h"

namespace gpushm::broker {
namespace {

std::string TextOf(const protocol::NameField& field) {
  return std::string(protocol::FromNameField(field));
}

// nullopt if the pod does not declare it.
std::optional<Policy> DeclaredPolicy(const annotations::PodSpec& declared,
                                     const std::string& name) {
  if (const annotations::BufferSpec* spec = declared.Find(name)) return Policy::FromSpec(*spec);
  const auto signal = std::ranges::find(declared.signals, name, &annotations::SignalSpec::name);
  if (signal != declared.signals.end()) return Policy::FromSpec(*signal);
  return std::nullopt;
}

Policy StatedPolicy(const protocol::LinkBuffer& stated) {
  Policy policy;
  policy.creator = TextOf(stated.creator);
  policy.writers_all = (stated.flags & protocol::kFlagWritersAll) != 0;
  policy.one_writer = (stated.flags & protocol::kFlagOneWriter) != 0;
  policy.until_unused = (stated.flags & protocol::kFlagUntilUnused) != 0;
  policy.on_writer_exit = static_cast<protocol::OnWriterExit>(stated.on_writer_exit);
  return policy;
}

constexpr char kLoadWasCut[] =
    "its load was in progress when the broker was restarted, or had failed before";

}  // namespace

Ledger::Restored Ledger::Restore(Kept kept, const annotations::PodSpec& declared) {
  Restored restored;
  RestoreGenerations(&kept, &restored);
  RestoreLeases(kept, &restored);
  std::map<std::string, const protocol::LinkBuffer*> buffers;  // The last statement about each.
  for (const protocol::LinkBuffer& stated : kept.buffers) {
    buffers.insert_or_assign(TextOf(stated.name), &stated);
  }
  for (const auto& [name, stated] : buffers) RestoreBuffer(*stated, declared, &restored);
  // An offer by cuIpc is removed with its owner. If the owner was not stated, it is gone.
  std::vector<std::string> ownerless;
  for (const auto& [number, generation] : generations_) {
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
  for (auto& [number, generation] : generations_) {
    const auto buffer = buffers_.find(generation.buffer);
    const bool pending = buffer != buffers_.end() && buffer->second.pending == number;
    if (!pending) generation.publisher_client = 0;
    const bool current = buffer != buffers_.end() && buffer->second.current == number;
    if (generation.leases == 0 && !pending && !current) unused.push_back(number);
  }
  for (const uint64_t number : unused) {
    restored.dropped.push_back(Concat("generation ", number, " of ", generations_.at(number).buffer,
                                      ": nothing refers to it"));
    ReleaseIfUnused(number);
  }
  // The earlier broker was killed between the end of the last lease and the end of the name.
  std::vector<std::string> names;
  for (const auto& [name, buffer] : buffers_) names.push_back(name);
  for (const std::string& name : names) RemoveIfUnused(name);
  restored.buffers = buffers_.size();
  restored.generations = generations_.size();
  restored.leases = leases_.size();
  return restored;
}

std::string Ledger::GenerationProblem(const Kept::Generation& generation,
                                      const std::set<std::string>& names) const {
  const protocol::LinkGeneration& stated = generation.stated;
  const auto transport = static_cast<protocol::Transport>(stated.transport);
  const bool by_descriptor =
      transport == protocol::Transport::kVmm || transport == protocol::Transport::kHost;
  if (stated.generation >= kMaxNumber) return "invalid number (never issued by a broker)";
  if (generations_.contains(stated.generation)) return "duplicate number";
  if (!names.contains(TextOf(stated.name))) return "its buffer was not stated";
  if (by_descriptor && !generation.memory) {
    return Concat("its memory was not received, though its transport is ", stated.transport);
  }
  if (stated.gpu >= gpus_.size()) {
    return Concat("its GPU is number ", stated.gpu, ", but the pod has ", gpus_.size());
  }
  if (generation.blocks.size() != stated.blocks) {
    return Concat(generation.blocks.size(), " of its ", stated.blocks, " blocks were received");
  }
  const OfGpu& gpu = gpus_[stated.gpu];
  if (stated.pooled == 0) {
    if (transport == protocol::Transport::kHost) return {};
    if (stated.mapped_bytes > gpu.total_bytes) {
      return Concat("it is larger than ", NameOfGpu(stated.gpu, "the GPU"), ": ",
                    stated.mapped_bytes, " of ", gpu.total_bytes, " bytes");
    }
    const uint64_t offered =
        protocol::OfferedBytes(transport, stated.size_bytes, stated.mapped_bytes);
    if (offered <= gpu.total_bytes - gpu.offered_bytes) return {};
    return Concat("more memory is offered than ", NameOfGpu(stated.gpu, "the GPU"),
                  " has: ", offered, " bytes in addition to ", gpu.offered_bytes, " of ",
                  gpu.total_bytes);
  }
  const uint64_t wanted = RoundUp(stated.size_bytes, limits_.granularity);
  if (stated.mapped_bytes != wanted) {
    return Concat("this broker never makes memory of this size: ", stated.mapped_bytes,
                  " bytes instead of ", wanted, " for ", stated.size_bytes);
  }
  const uint64_t pool_bytes = limits_.pool_bytes;
  if (stated.mapped_bytes > pool_bytes - gpu.used_bytes) {
    return Concat("the pool", gpus_.size() == 1 ? "" : Concat(" on GPU ", stated.gpu),
                  " has no room for it: it needs ", stated.mapped_bytes, " bytes, and ",
                  pool_bytes - gpu.used_bytes, " of ", pool_bytes, " are free");
  }
  return {};
}

void Ledger::RestoreGenerations(Kept* kept, Restored* restored) {
  std::set<std::string> names;
  for (const protocol::LinkBuffer& stated : kept->buffers) names.insert(TextOf(stated.name));
  for (Kept::Generation& given : kept->generations) {
    const protocol::LinkGeneration& stated = given.stated;
    if (stated.generation < kMaxNumber) {
      next_generation_ = std::max(next_generation_, stated.generation + 1);
    }
    if (const std::string problem = GenerationProblem(given, names); !problem.empty()) {
      restored->dropped.push_back(
          Concat("generation ", stated.generation, " of ", TextOf(stated.name), ": ", problem));
      Memory refused;
      refused.descriptor = std::move(given.memory);
      refused.blocks = std::move(given.blocks);
      refused.gpu = stated.gpu < gpus_.size() ? stated.gpu : 0;
      freed_.push_back(std::move(refused));
      continue;
    }
    Generation& generation = generations_[stated.generation];
    generation.buffer = TextOf(stated.name);
    generation.publisher_client = stated.publisher_client;
    generation.offerer_client = stated.offerer_client;
    generation.created_unix_ns = stated.created_unix_ns;
    generation.memory.transport = static_cast<protocol::Transport>(stated.transport);
    generation.memory.size_bytes = stated.size_bytes;
    generation.memory.mapped_bytes = stated.mapped_bytes;
    generation.memory.descriptor = std::move(given.memory);
    generation.memory.blocks = std::move(given.blocks);
    generation.memory.cuipc_handle = stated.cuipc_handle;
    generation.memory.offset = stated.offset;
    generation.memory.offerer_pid = stated.offerer_pid;
    generation.memory.pooled = stated.pooled == 1;
    generation.memory.gpu = stated.gpu;
    OfGpu& gpu = gpus_[stated.gpu];
    if (stated.pooled == 1) gpu.used_bytes += stated.mapped_bytes;
    gpu.offered_bytes += OfferedBytes(generation.memory);
    AddGeneration(stated.generation);
  }
  for (const protocol::LinkContent& stated : kept->contents) {
    const auto generation = generations_.find(stated.generation);
    // It was dropped, with a reason recorded above.
    if (generation == generations_.end()) continue;
    generation->second.content_bytes =
        std::min(stated.content_bytes, generation->second.memory.size_bytes);
    generation->second.digest = stated.digest;
  }
  for (Kept::Description& given : kept->descriptions) {
    const auto generation = generations_.find(given.stated.generation);
    if (generation == generations_.end() || !given.memory) continue;
    if (auto room = HasRoomForDescription(generation->second, given.stated.size_bytes); !room) {
      restored->dropped.push_back(Concat("the description of generation ", generation->first,
                                         " of ", generation->second.buffer, ": ",
                                         room.error().what()));
      continue;
    }
    PutDescription(generation->first, std::move(given.memory), given.stated.size_bytes);
  }
}

void Ledger::RestoreLeases(const Kept& kept, Restored* restored) {
  for (const protocol::LinkLease& stated : kept.leases) {
    if (stated.lease_id < kMaxNumber) next_lease_ = std::max(next_lease_, stated.lease_id + 1);
    const auto client = kept.clients.find(stated.client_id);
    const auto generation = generations_.find(stated.generation);
    std::string problem;
    if (stated.lease_id >= kMaxNumber) {
      problem = "invalid number (never issued by a broker)";
    } else if (client == kept.clients.end()) {
      problem = Concat("its client was not stated: client ", stated.client_id);
    } else if (generation == generations_.end()) {
      problem = Concat("its generation does not exist: generation ", stated.generation);
    } else if (leases_.contains(stated.lease_id)) {
      problem = "duplicate number";
    } else if (leases_.size() >= limits_.leases) {
      problem = Concat("too many leases: the limit is ", limits_.leases);
    }
    if (!problem.empty()) {
      restored->dropped.push_back(Concat("lease ", stated.lease_id, ": ", problem));
      continue;
    }
    leases_.emplace(
        stated.lease_id,
        Lease{stated.lease_id, Client{stated.client_id, client->second}, generation->second.buffer,
              stated.generation, static_cast<Access>(stated.access), stated.since_unix_ns,
              static_cast<protocol::PeerWay>(stated.peer_way)});
    holdings_.AddLease(stated.lease_id, stated.client_id, client->second, generation->second.buffer,
                       static_cast<Access>(stated.access) == Access::kReadWrite);
    ++generation->second.leases;
  }
}

// An unpublished generation stays only while its publisher holds it, because nobody else can
// publish it.
bool Ledger::IsPublishable(uint64_t generation, const std::string& name) const {
  const auto found = generations_.find(generation);
  if (found == generations_.end() || found->second.buffer != name) return false;
  const uint64_t publisher = found->second.publisher_client;
  const std::set<uint64_t>& leases = holdings_.Name(name).leases;
  return std::any_of(leases.begin(), leases.end(), [&](uint64_t id) {
    const Lease& lease = leases_.at(id);
    return lease.generation == generation && lease.client.id == publisher &&
           lease.access == Access::kReadWrite;
  });
}

void Ledger::RestoreBuffer(const protocol::LinkBuffer& stated, const annotations::PodSpec& pod,
                           Restored* restored) {
  const std::string name = TextOf(stated.name);
  const std::optional<Policy> declared = DeclaredPolicy(pod, name);
  const bool was_gone = (stated.current | stated.pending) == 0;
  if (was_gone) {
    const bool dropped = stated.state == static_cast<uint32_t>(BufferState::kWriterDied);
    if (!declared || !dropped) return;  // Its generations are still held, or it was never finished.
    declared_.insert_or_assign(name, *declared);
    restored->settled.insert(name);
    return;
  }
  const auto current = generations_.find(stated.current);
  const bool has_current = current != generations_.end() && current->second.buffer == name;
  const bool has_pending = IsPublishable(stated.pending, name);
  const bool is_page = has_current && current->second.memory.is_page();
  const char* const problem = !has_current && !has_pending ? "its memory does not exist"
                              : !declared && stated.declared == 1
                                  ? "the pod does not declare it any more"
                              : declared && has_current && declared->signal != is_page
                                  ? "it is declared as something else now"
                              : !declared && TextOf(stated.creator).empty() ? "it has no creator"
                              : buffers_.size() >= limits_.buffers          ? "too many buffers"
                                                                            : nullptr;
  if (problem != nullptr) {
    restored->dropped.push_back(Concat("buffer ", name, ": ", problem));
    return;
  }
  Buffer& buffer = AddBuffer(name, declared ? *declared : StatedPolicy(stated));
  buffer.current = has_current ? stated.current : 0;
  buffer.pending = has_pending ? stated.pending : 0;
  buffer.gpu = generations_.at(has_current ? stated.current : stated.pending).memory.gpu;
  if (declared) {
    declared_.insert_or_assign(name, *declared);
    restored->settled.insert(name);
  }
  if (has_current) RestoreContent(stated, pod.Find(name), name, &buffer);
  Show(name);
}

void Ledger::RestoreContent(const protocol::LinkBuffer& stated, const annotations::BufferSpec* spec,
                            const std::string& name, Buffer* buffer) {
  buffer->state = static_cast<BufferState>(stated.state);
  buffer->loaded_bytes =
      std::min(stated.loaded_bytes, generations_.at(buffer->current).memory.size_bytes);
  std::set<uint64_t> writers;
  for (const uint64_t id : holdings_.Name(name).leases) {
    const Lease& lease = leases_.at(id);
    const bool writes = lease.generation == buffer->current && lease.access == Access::kReadWrite;
    if (writes) writers.insert(lease.client.id);
  }
  if (buffer->state == BufferState::kLoading) {
    const bool awaited = spec != nullptr && spec->StartsLoading();
    if (writers.empty() && !awaited) {
      buffer->state = BufferState::kFailed;
    } else if (writers.size() == 1 && (!awaited || buffer->loaded_bytes > 0)) {
      buffer->loading_client = *writers.begin();  // It loads by itself and continues.
    } else if (!writers.empty() && (!awaited || buffer->loaded_bytes > 0)) {
      buffer->one_writer_loads = true;
    }
  }
  if (buffer->state == BufferState::kFailed && spec != nullptr && !spec->file.empty()) {
    buffer->state = BufferState::kLoading;
    buffer->loaded_bytes = 0;
  }
  if (buffer->state == BufferState::kFailed) buffer->reason = {Code::kPeerDied, kLoadWasCut};
}

std::optional<BufferState> Ledger::StateOf(const std::string& name) const {
  const auto found = buffers_.find(name);
  if (found == buffers_.end() || found->second.current == 0) return std::nullopt;
  return found->second.state;
}

}  // namespace gpushm::broker
