// Pages of signals, barriers and rings (Ledger's members; see ledger.h).
#include <algorithm>

#include "contract/limits.h"
#include "contract/sync/page.h"
#include "sidecar/broker/ledger.h"

namespace gpushm::broker {

// Pages are made at once, so that none is under way.
Result<void> Ledger::HasRoomForPage(uint64_t mapped_bytes) const {
  if (mapped_bytes <= limits::kAllPagesBytes - std::min(page_bytes_, limits::kAllPagesBytes)) {
    return {};
  }
  return Fail(
      Code::kExhausted,
      Concat("the pod's signals, barriers and rings have ", page_bytes_, " of ",
             limits::kAllPagesBytes, " bytes of host memory, ", mapped_bytes, " more are needed"),
      "delete some; docs/reference/limits.md");
}

Result<Ledger::Ticket> Ledger::BeginDeclared(const config::SignalSpec& spec, uint64_t page_bytes) {
  const Policy policy = Policy::FromSpec(spec);
  declared_.insert_or_assign(spec.name, policy);
  return BeginNew(Client{}, spec.name, page_bytes, policy, 0, /*page=*/true);
}

Result<Ledger::Ticket> Ledger::BeginPage(const Client& client, const std::string& name,
                                         uint64_t size_bytes, const Policy& policy,
                                         uint64_t after_generation) {
  constexpr uint32_t kFlags = protocol::kFlagAttach | protocol::kFlagUnpublished;
  if (after_generation == 0) {
    return BeginNew(client, name, size_bytes, policy, kFlags, /*page=*/true);
  }
  const auto found = buffers_.find(name);
  if (found != buffers_.end() && found->second.current != after_generation) {
    return Fail(Code::kStale,
                Concat("generation ", after_generation, " of ", '"', name, '"', " is history, ",
                       found->second.current, " is current"),
                "open it again");
  }
  return BeginNext(client, name, size_bytes,
                   kFlags | (policy.until_unused ? protocol::kFlagUntilUnused : 0), /*page=*/true);
}

bool Ledger::IsPage(const std::string& name) const {
  const auto found = buffers_.find(name);
  if (found == buffers_.end() || found->second.current == 0) return false;
  return generations_.at(found->second.current).memory.is_page();
}

std::vector<Ledger::PageLeases> Ledger::Pages() const {
  std::map<uint64_t, PageLeases> pages;
  for (const auto& [number, generation] : generations_) {
    if (!generation.memory.is_page()) continue;
    pages[number].name = generation.buffer;
    pages[number].page = generation.memory.descriptor.get();
  }
  for (const auto& [id, lease] : leases_) {
    const auto page = pages.find(lease.generation);
    if (page != pages.end()) page->second.leases.insert(id);
  }
  std::vector<PageLeases> all;
  for (auto& [number, page] : pages) all.push_back(std::move(page));
  return all;
}

const Memory* Ledger::FindPage(const Client& client, uint64_t lease_id) const {
  const auto lease = leases_.find(lease_id);
  if (lease == leases_.end() || lease->second.client.id != client.id) return nullptr;
  const Memory& memory = generations_.at(lease->second.generation).memory;
  return memory.is_page() ? &memory : nullptr;
}

const Memory* Ledger::FindWord(const std::string& signal, uint64_t generation) const {
  const auto found = generations_.find(generation);
  if (found == generations_.end() || found->second.leases == 0) return nullptr;
  const std::string& name = found->second.buffer;
  const bool named = name == Concat(signal, signal::kWordSuffix);
  if (!named || declared_.contains(name) || !found->second.memory.pooled) return nullptr;
  return &found->second.memory;
}

}  // namespace gpushm::broker
