#include "sidecar/broker/generations.h"

#include <algorithm>

#include "sidecar/broker/leases.h"

namespace gpushm::broker {
namespace {

template <typename Key>
const Generations::Numbers& NumbersOf(const std::map<Key, Generations::Numbers>& index,
                                      const Key& key) {
  static const Generations::Numbers kNone;
  const auto found = index.find(key);
  return found == index.end() ? kNone : found->second;
}

template <typename Key>
void Erase(std::map<Key, Generations::Numbers>* index, const Key& key, uint64_t number) {
  const auto found = index->find(key);
  found->second.erase(number);
  if (found->second.empty()) index->erase(found);
}

}  // namespace

const Generations::Numbers& Generations::OfName(const std::string& name) const {
  return NumbersOf(of_name_, name);
}

const Generations::Numbers& Generations::OfferedBy(uint64_t client) const {
  return NumbersOf(offered_by_, client);
}

void Generations::Enter(uint64_t number, Generation generation) {
  budget_.Add(generation.memory);
  budget_.ChangeDescription(0, generation.description_bytes);
  of_name_[generation.buffer].insert(number);
  if (generation.offerer_client != 0) offered_by_[generation.offerer_client].insert(number);
  all_.emplace(number, std::move(generation));
}

uint64_t Generations::Add(Generation generation) {
  Enter(next_, std::move(generation));
  return next_++;
}

void Generations::Free(uint64_t number) {
  const auto found = all_.find(number);
  Generation& generation = found->second;
  GPUSHM_ASSERT(generation.leases == 0);
  budget_.ChangeDescription(generation.description_bytes, 0);
  budget_.Remove(generation.memory);
  Erase(&of_name_, generation.buffer, number);
  if (generation.offerer_client != 0) Erase(&offered_by_, generation.offerer_client, number);
  Free(std::move(generation.memory));
  all_.erase(found);
}

std::string Generations::Problem(uint64_t number, const Generation& generation) const {
  const Memory& memory = generation.memory;
  if (number >= kMaxNumber) return "invalid number (never issued by a broker)";
  if (all_.contains(number)) return "duplicate number";
  if (memory.has_descriptor() && !memory.descriptor) {
    return Concat("its memory was not received, though its transport is ", memory.transport);
  }
  const auto received = std::ranges::count_if(
      memory.blocks, [](const Block& block) { return block.descriptor.valid(); });
  if (static_cast<size_t>(received) != memory.blocks.size()) {
    return Concat(received, " of its ", memory.blocks.size(), " blocks were received");
  }
  return budget_.Problem(memory);
}

void Generations::Skip(uint64_t number) {
  if (number < kMaxNumber) next_ = std::max(next_, number + 1);
}

void Generations::Restore(uint64_t number, Generation generation) {
  Skip(number);
  Enter(number, std::move(generation));
}

void Generations::Refuse(uint64_t number, Generation generation) {
  Skip(number);
  // The pod may not have its GPU any more.
  if (generation.memory.gpu >= budget_.gpu_count()) generation.memory.gpu = 0;
  Free(std::move(generation.memory));
}

bool Generations::SetDescription(uint64_t number, UniqueFd memory, uint64_t bytes) {
  Generation& generation = all_.at(number);
  if (!memory && !generation.description) return false;
  budget_.ChangeDescription(generation.description_bytes, bytes);
  generation.description = std::move(memory);
  generation.description_bytes = bytes;
  return true;
}

std::vector<Memory> Generations::LetGo() {
  std::vector<Memory> memories = TakeFreed();
  for (auto& [number, generation] : all_) memories.push_back(std::move(generation.memory));
  return memories;
}

}  // namespace gpushm::broker
