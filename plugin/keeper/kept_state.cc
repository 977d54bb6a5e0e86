#include "plugin/keeper/kept_state.h"

#include <utility>

#include "contract/limits.h"

namespace gpushm::plugin::keeper {
namespace {

using protocol::FromNameField;
using protocol::LinkKind;

std::unexpected<Status> Full(std::string_view what, uint64_t limit) {
  return Fail(Code::kExhausted, Concat("the broker states more than ", limit, " ", what),
              "what was kept of it is dropped; docs/reference/limits.md has the limits");
}

bool HasDescriptor(const protocol::LinkGeneration& generation) {
  return generation.transport == Transport::kVmm || IsSyncPage(generation);
}

// The memory behind a generation number never changes.
bool IsSameMemory(const protocol::LinkGeneration& a, const protocol::LinkGeneration& b) {
  return a.name == b.name && a.size_bytes == b.size_bytes && a.mapped_bytes == b.mapped_bytes &&
         a.transport == b.transport && a.pooled == b.pooled && a.gpu == b.gpu &&
         a.blocks == b.blocks && a.offset == b.offset && a.cuipc_handle == b.cuipc_handle;
}

// Heap bytes of a node of a map or set: its three pointers and colour, the allocator's header,
// rounded up to 16.
constexpr uint64_t NodeBytes(uint64_t value_bytes) {
  return (value_bytes + 4 * sizeof(void*) + sizeof(void*) + 15) / 16 * 16;
}
constexpr uint64_t kClientBytes = NodeBytes(sizeof(std::pair<const uint64_t, KeptState::Client>));
constexpr uint64_t kLeaseBytes = NodeBytes(sizeof(std::pair<const uint64_t, KeptState::Lease>));
// Includes its number in its buffer's set.
constexpr uint64_t kGenerationBytes =
    NodeBytes(sizeof(std::pair<const uint64_t, KeptState::Generation>)) +
    NodeBytes(sizeof(uint64_t));
// Includes a name that is too long for the string's own storage.
constexpr uint64_t kBufferBytes =
    NodeBytes(sizeof(std::pair<const std::string, KeptState::Buffer>)) + limits::kNameBytes + 17;

template <KeptState::LeaseLinks KeptState::Lease::* links>
void Link(KeptState::Lease* lease, KeptState::Lease** first) {
  lease->*links = {.before = nullptr, .after = *first};
  if (*first != nullptr) ((*first)->*links).before = lease;
  *first = lease;
}

template <KeptState::LeaseLinks KeptState::Lease::* links>
void Unlink(KeptState::Lease* lease, KeptState::Lease** first) {
  const KeptState::LeaseLinks& at = lease->*links;
  if (at.after != nullptr) (at.after->*links).before = at.before;
  if (at.before != nullptr) {
    (at.before->*links).after = at.after;
  } else {
    *first = at.after;
  }
}

}  // namespace

void KeptState::Discard(UniqueFd fd) {
  if (fd) discarded_.push_back(std::move(fd));
}

// ---- statements

Result<void> KeptState::Apply(const protocol::LinkClient& client, UniqueFd pidfd) {
  const uint64_t id = client.client_id;
  if (!pidfd) return BrokeProtocol(Concat("client ", id, " without its pidfd"));
  const auto known = clients_.find(id);
  if (known == clients_.end() && clients_.size() >= limits::kLinkClients) {
    Discard(std::move(pidfd));
    return Full("clients", limits::kLinkClients);
  }
  Client& kept = known == clients_.end() ? clients_[id] : known->second;
  kept.stated = client;
  // Keeps the latest: a client that resumed its connection may be another process.
  Discard(std::exchange(kept.pidfd, std::move(pidfd)));
  kept.round = round_;
  return {};
}

Result<void> KeptState::Apply(const protocol::LinkBuffer& buffer) {
  const std::string name(FromNameField(buffer.name));
  const auto known = buffers_.find(name);
  if (known == buffers_.end() && buffers_.size() >= limits::kLinkBuffers) {
    return Full("buffers", limits::kLinkBuffers);
  }
  Buffer& kept = known == buffers_.end() ? buffers_[name] : known->second;
  kept.stated = buffer;
  kept.round = round_;
  return {};
}

Result<void> KeptState::Apply(const protocol::LinkGeneration& generation, UniqueFd memory) {
  const auto buffer = buffers_.find(std::string(FromNameField(generation.name)));
  const auto known = generations_.find(generation.generation);
  Result<void> valid;
  if (buffer == buffers_.end()) {
    valid = BrokeProtocol(Concat("generation ", generation.generation, " of the unknown buffer \"",
                                 FromNameField(generation.name), '"'));
  } else if (memory && !HasDescriptor(generation)) {
    valid = BrokeProtocol(Concat("unexpected descriptor: generation ", generation.generation,
                                 " has transport ", generation.transport, ", which has none"));
  } else if (known != generations_.end() && !IsSameMemory(known->second.stated, generation)) {
    const protocol::LinkGeneration& other = known->second.stated;
    valid = BrokeProtocol(
        Concat("generation ", generation.generation, " is already used for other memory: buffer \"",
               FromNameField(other.name), "\", ", other.mapped_bytes, " bytes, transport ",
               other.transport, "; stated now: buffer \"", FromNameField(generation.name), "\", ",
               generation.mapped_bytes, " bytes, transport ", generation.transport));
  } else if (known == generations_.end() && !memory && HasDescriptor(generation)) {
    valid = BrokeProtocol(Concat("generation ", generation.generation, " without its descriptor"));
  } else if (known == generations_.end() && generations_.size() >= limits::kLinkGenerations) {
    valid = Full("generations", limits::kLinkGenerations);
  } else if (known == generations_.end() && block_count_ + generation.blocks > limits::kAllBlocks) {
    valid = Full("blocks of offers", limits::kAllBlocks);
  }
  if (!valid) {
    Discard(std::move(memory));
    return valid;
  }
  if (known != generations_.end()) {
    Discard(std::move(memory));
    known->second.stated = generation;
    known->second.round = round_;
    return {};
  }
  Generation& kept = generations_[generation.generation];
  kept.stated = generation;
  kept.memory = std::move(memory);
  kept.blocks.reserve(generation.blocks);
  block_count_ += generation.blocks;
  kept.round = round_;
  buffer->second.generations.insert(generation.generation);
  BytesOf(generation) += PhysicalBytes(generation);
  return {};
}

Result<void> KeptState::Apply(const protocol::LinkBlock& block, UniqueFd memory) {
  const auto found = generations_.find(block.generation);
  Result<void> valid;
  if (found == generations_.end()) {
    valid = BrokeProtocol(Concat("block of the unknown generation ", block.generation));
  } else if (block.index >= found->second.stated.blocks ||
             block.index > found->second.blocks.size()) {
    valid = BrokeProtocol(Concat("block ", block.index, " of generation ", block.generation,
                                 ", of which ", found->second.blocks.size(), " of ",
                                 found->second.stated.blocks, " were stated"));
  } else if (block.index < found->second.blocks.size()) {
    const uint64_t known = found->second.blocks[block.index].mapped_bytes;
    if (known != block.mapped_bytes) {
      valid = BrokeProtocol(Concat("block ", block.index, " of generation ", block.generation,
                                   " has ", known, " bytes; stated now: ", block.mapped_bytes));
    } else {
      Discard(std::move(memory));
      return {};
    }
  } else if (!memory) {
    valid = BrokeProtocol(Concat("block ", block.index, " of generation ", block.generation,
                                 " without its descriptor"));
  }
  if (!valid) {
    Discard(std::move(memory));
    return valid;
  }
  found->second.blocks.push_back({std::move(memory), block.mapped_bytes});
  return {};
}

Result<void> KeptState::Apply(const protocol::LinkContent& content) {
  const auto generation = generations_.find(content.generation);
  if (generation == generations_.end()) {
    return BrokeProtocol(Concat("content of the unknown generation ", content.generation));
  }
  if (content.content_bytes > generation->second.stated.size_bytes) {
    return BrokeProtocol(Concat("content of ", content.content_bytes,
                                " bytes is larger than generation ", content.generation,
                                ", which has ", generation->second.stated.size_bytes));
  }
  generation->second.content_bytes = content.content_bytes;
  generation->second.digest = content.digest;
  return {};
}

Result<void> KeptState::Apply(const protocol::LinkDescription& description, UniqueFd memory) {
  const auto found = generations_.find(description.generation);
  Result<void> valid;
  if (found == generations_.end()) {
    valid = BrokeProtocol(Concat("description of the unknown generation ", description.generation));
  } else if (static_cast<bool>(memory) != (description.size_bytes > 0)) {
    valid = BrokeProtocol(Concat("description of generation ", description.generation, " has ",
                                 description.size_bytes, " bytes, but came ",
                                 memory ? "with" : "without", " a descriptor"));
  } else if (description.size_bytes >
             limits::kAllDescriptionsBytes + found->second.description_bytes - description_bytes_) {
    valid = Full("bytes of descriptions", limits::kAllDescriptionsBytes);
  }
  if (!valid) {
    Discard(std::move(memory));
    return valid;
  }
  Generation& generation = found->second;
  ForgetDescription(&generation);
  generation.description = std::move(memory);
  generation.description_bytes = description.size_bytes;
  generation.description_round = round_;
  description_bytes_ += description.size_bytes;
  return {};
}

Result<void> KeptState::Apply(const protocol::LinkLease& lease) {
  const auto client = clients_.find(lease.client_id);
  if (client == clients_.end()) {
    return BrokeProtocol(
        Concat("lease ", lease.lease_id, " of the unknown client ", lease.client_id));
  }
  const auto generation = generations_.find(lease.generation);
  if (generation == generations_.end()) {
    return BrokeProtocol(
        Concat("lease ", lease.lease_id, " on the unknown generation ", lease.generation));
  }
  const auto known = leases_.find(lease.lease_id);
  if (known != leases_.end()) {
    Forget(known);
  } else if (leases_.size() >= limits::kLeases) {
    return Full("leases", limits::kLeases);
  }
  Lease& kept = leases_[lease.lease_id];
  kept.stated = lease;
  kept.round = round_;
  Link<&Lease::of_client>(&kept, &client->second.leases);
  Link<&Lease::of_generation>(&kept, &generation->second.leases);
  return {};
}

void KeptState::Apply(const protocol::LinkDrop& drop) {
  const auto forget = [this](auto* map, const auto& key) {
    if (const auto found = map->find(key); found != map->end()) Forget(found);
  };
  switch (static_cast<protocol::LinkDropped>(drop.what)) {
    case protocol::LinkDropped::kClient:
      return forget(&clients_, drop.id);
    case protocol::LinkDropped::kBuffer:
      return forget(&buffers_, std::string(FromNameField(drop.name)));
    case protocol::LinkDropped::kGeneration:
      return forget(&generations_, drop.id);
    case protocol::LinkDropped::kLease:
      return forget(&leases_, drop.id);
  }
}

// ---- what ends, and what ends with it

void KeptState::ForgetMemory(Generation* generation) {
  block_count_ -= generation->stated.blocks;
  for (Block& block : generation->blocks) Discard(std::move(block.memory));
  Discard(std::move(generation->memory));
}

void KeptState::ForgetDescription(Generation* generation) {
  description_bytes_ -= std::exchange(generation->description_bytes, 0);
  Discard(std::move(generation->description));
}

KeptState::LeaseAt KeptState::Forget(LeaseAt lease) {
  const protocol::LinkLease& stated = lease->second.stated;
  Unlink<&Lease::of_client>(&lease->second, &clients_.find(stated.client_id)->second.leases);
  Unlink<&Lease::of_generation>(&lease->second,
                                &generations_.find(stated.generation)->second.leases);
  return leases_.erase(lease);
}

KeptState::ClientAt KeptState::Forget(ClientAt client) {
  while (client->second.leases != nullptr) {
    Forget(leases_.find(client->second.leases->stated.lease_id));
  }
  Discard(std::move(client->second.pidfd));
  return clients_.erase(client);
}

KeptState::GenerationAt KeptState::Forget(GenerationAt generation) {
  while (generation->second.leases != nullptr) {
    Forget(leases_.find(generation->second.leases->stated.lease_id));
  }
  const protocol::LinkGeneration& stated = generation->second.stated;
  BytesOf(stated) -= PhysicalBytes(stated);
  buffers_.find(std::string(FromNameField(stated.name)))
      ->second.generations.erase(stated.generation);
  ForgetDescription(&generation->second);
  ForgetMemory(&generation->second);
  return generations_.erase(generation);
}

KeptState::BufferAt KeptState::Forget(BufferAt buffer) {
  const std::set<uint64_t> generations = buffer->second.generations;
  for (const uint64_t generation : generations) Forget(generations_.find(generation));
  return buffers_.erase(buffer);
}

template <typename Map>
void KeptState::Sweep(Map* map) {
  for (auto at = map->begin(); at != map->end();) {
    at = at->second.round == round_ ? std::next(at) : Forget(at);
  }
}

void KeptState::EndAll() {
  Sweep(&leases_);
  Sweep(&generations_);
  Sweep(&buffers_);
  Sweep(&clients_);
  for (auto& [number, generation] : generations_) {
    if (generation.description_round != round_) ForgetDescription(&generation);
  }
}

void KeptState::Clear() {
  leases_.clear();
  for (auto& [id, client] : clients_) Discard(std::move(client.pidfd));
  clients_.clear();
  for (auto& [number, generation] : generations_) {
    ForgetDescription(&generation);
    ForgetMemory(&generation);
  }
  generations_.clear();
  buffers_.clear();
  gpu_bytes_ = {};
}

// ---- reading

bool KeptState::Next(DumpPosition* position, Datagram* datagram) const {
  using Stage = DumpPosition::Stage;
  // Moves to the next entry; false when this stage is done.
  const auto advance = [position](const auto& map, Stage next, auto* found) {
    *found = map.upper_bound(position->id);
    if (*found != map.end()) {
      position->id = (*found)->first;
      return true;
    }
    *position = {.stage = next, .id = 0, .block = 0, .name = {}};
    return false;
  };
  if (position->stage == Stage::kClients) {
    decltype(clients_)::const_iterator client;
    if (advance(clients_, Stage::kBuffers, &client)) {
      datagram->Encode(LinkKind::kClient, client->second.stated, client->second.pidfd.get());
      return true;
    }
  }
  if (position->stage == Stage::kBuffers) {
    const auto buffer = buffers_.upper_bound(position->name);
    if (buffer != buffers_.end()) {
      position->name = buffer->first;
      protocol::LinkBuffer stated = buffer->second.stated;
      if (!buffer->second.generations.contains(stated.current)) stated.current = 0;
      if (!buffer->second.generations.contains(stated.pending)) stated.pending = 0;
      datagram->Encode(LinkKind::kBuffer, stated);
      return true;
    }
    *position = {.stage = Stage::kGenerations, .id = 0, .block = 0, .name = {}};
  }
  if (position->stage == Stage::kGenerations) {
    decltype(generations_)::const_iterator generation;
    if (advance(generations_, Stage::kBlocks, &generation)) {
      datagram->Encode(LinkKind::kGeneration, generation->second.stated,
                       generation->second.memory.get());
      return true;
    }
  }
  if (position->stage == Stage::kBlocks) {
    auto generation = generations_.find(position->id);
    do {
      if (generation != generations_.end() && position->block < generation->second.blocks.size()) {
        const Block& block = generation->second.blocks[position->block];
        datagram->Encode(LinkKind::kBlock,
                         protocol::LinkBlock{.generation = generation->first,
                                             .mapped_bytes = block.mapped_bytes,
                                             .index = position->block++,
                                             .reserved = 0},
                         block.memory.get());
        return true;
      }
      position->block = 0;
    } while (advance(generations_, Stage::kContents, &generation));
  }
  if (position->stage == Stage::kContents) {
    decltype(generations_)::const_iterator generation;
    while (advance(generations_, Stage::kDescriptions, &generation)) {
      const std::optional<uint64_t> bytes = generation->second.content_bytes;
      if (!bytes) continue;
      datagram->Encode(LinkKind::kContent,
                       protocol::LinkContent{generation->first, *bytes, generation->second.digest});
      return true;
    }
  }
  if (position->stage == Stage::kDescriptions) {
    decltype(generations_)::const_iterator generation;
    while (advance(generations_, Stage::kLeases, &generation)) {
      const Generation& kept = generation->second;
      if (!kept.description) continue;
      datagram->Encode(LinkKind::kDescription,
                       protocol::LinkDescription{generation->first, kept.description_bytes},
                       kept.description.get());
      return true;
    }
  }
  if (position->stage == Stage::kLeases) {
    decltype(leases_)::const_iterator lease;
    if (advance(leases_, Stage::kDone, &lease)) {
      datagram->Encode(LinkKind::kLease, lease->second.stated);
      return true;
    }
  }
  return false;
}

uint64_t KeptState::bytes() const {
  return clients_.size() * kClientBytes + buffers_.size() * kBufferBytes +
         generations_.size() * kGenerationBytes + leases_.size() * kLeaseBytes +
         block_count_ * sizeof(Block);
}

KeptCounts KeptState::counts() const {
  GpuBytes sum;
  for (const GpuBytes& bytes : gpu_bytes_) {
    sum.pooled += bytes.pooled;
    sum.offered += bytes.offered;
  }
  return {.clients = static_cast<uint32_t>(clients_.size()),
          .buffers = static_cast<uint32_t>(buffers_.size()),
          .generations = static_cast<uint32_t>(generations_.size()),
          .leases = static_cast<uint32_t>(leases_.size()),
          .pooled_bytes = sum.pooled,
          .offered_bytes = sum.offered};
}

uint64_t& KeptState::BytesOf(const protocol::LinkGeneration& generation) {
  GpuBytes& bytes = gpu_bytes_.at(generation.gpu);
  return generation.pooled != 0 ? bytes.pooled : bytes.offered;
}

}  // namespace gpushm::plugin::keeper
