#include "simulator/cuda/address_space.h"

#include <sys/mman.h>

#include <algorithm>

namespace gpushm::sim {
namespace {

template <typename T>
const T* FindRange(const std::map<uint64_t, T>& ranges, uint64_t address) {
  auto it = ranges.upper_bound(address);
  if (it == ranges.begin()) return nullptr;
  --it;
  return address - it->first < it->second.size_bytes ? &it->second : nullptr;
}

bool Overlaps(uint64_t a, uint64_t a_size, uint64_t b, uint64_t b_size) {
  return a < b + b_size && b < a + a_size;
}

void* Pointer(uint64_t address) { return reinterpret_cast<void*>(static_cast<uintptr_t>(address)); }

}  // namespace

uint64_t AddressSpace::Reserve(uint64_t size_bytes, uint64_t alignment_bytes, uint64_t hint) {
  const uint64_t alignment = std::max(alignment_bytes, kGranularityBytes);
  const uint64_t padded = size_bytes + alignment;
  if (padded < size_bytes) return 0;
  void* const area = mmap(hint == 0 ? nullptr : Pointer(hint), padded, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) return 0;
  const auto start = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(area));
  const uint64_t address = (start + alignment - 1) / alignment * alignment;
  if (address > start) munmap(area, address - start);
  const uint64_t tail = start + padded - (address + size_bytes);
  if (tail > 0) munmap(Pointer(address + size_bytes), tail);
  const std::lock_guard lock(mutex_);
  reservations_[address] = size_bytes;
  return address;
}

bool AddressSpace::Free(uint64_t address, uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second != size_bytes) return false;
  const auto next = mappings_.lower_bound(address);
  if (next != mappings_.end() && next->first < address + size_bytes) return false;
  reservations_.erase(found);
  munmap(Pointer(address), size_bytes);
  return true;
}

bool AddressSpace::Map(const Mapping& mapping) {
  const std::lock_guard lock(mutex_);
  auto reserved = reservations_.upper_bound(mapping.address);
  if (reserved == reservations_.begin()) return false;
  --reserved;
  const uint64_t offset = mapping.address - reserved->first;
  if (offset >= reserved->second || mapping.size_bytes > reserved->second - offset) return false;
  auto next = mappings_.lower_bound(mapping.address);
  if (next != mappings_.end() && next->first < mapping.address + mapping.size_bytes) return false;
  if (FindLocked(mapping.address) != nullptr) return false;
  Mapping& added = mappings_[mapping.address] = mapping;
  added.id = next_id_++;
  return true;
}

bool AddressSpace::Unmap(uint64_t address, uint64_t size_bytes) {
  std::vector<std::shared_ptr<Allocation>>
      dropped;  // Freed after the lock, because that takes file locks.
  const std::lock_guard lock(mutex_);
  uint64_t covered = 0;
  auto it = mappings_.find(address);
  const auto first = it;
  while (it != mappings_.end() && covered < size_bytes && it->first == address + covered) {
    covered += it->second.size_bytes;
    ++it;
  }
  if (covered != size_bytes || covered == 0) return false;
  for (auto gone = first; gone != it; ++gone) dropped.push_back(gone->second.allocation);
  mappings_.erase(first, it);
  return true;
}

bool AddressSpace::SetRights(uint64_t address, uint64_t size_bytes, int device, Rights rights) {
  const std::lock_guard lock(mutex_);
  uint64_t covered = 0;
  auto it = mappings_.find(address);
  const auto first = it;
  while (it != mappings_.end() && covered < size_bytes && it->first == address + covered) {
    covered += it->second.size_bytes;
    ++it;
  }
  if (covered != size_bytes || covered == 0) return false;
  for (auto changed = first; changed != it; ++changed) changed->second.rights[device] = rights;
  return true;
}

const Mapping* AddressSpace::FindLocked(uint64_t address) const {
  return FindRange(mappings_, address);
}

bool AddressSpace::Find(uint64_t address, Mapping* mapping) const {
  const std::lock_guard lock(mutex_);
  const Mapping* found = FindLocked(address);
  if (found != nullptr) *mapping = *found;
  return found != nullptr;
}

bool AddressSpace::IsReserved(uint64_t address) const {
  const std::lock_guard lock(mutex_);
  auto it = reservations_.upper_bound(address);
  if (it == reservations_.begin()) return false;
  --it;
  return address - it->first < it->second;
}

bool AddressSpace::AddHost(const HostRange& range) {
  const std::lock_guard lock(mutex_);
  for (const auto& [address, known] : host_) {
    if (Overlaps(address, known.size_bytes, range.address, range.size_bytes)) return false;
  }
  HostRange& added = host_[range.address] = range;
  added.id = next_id_++;
  return true;
}

void AddressSpace::RemoveHostOf(int device) {
  const std::lock_guard lock(mutex_);
  std::erase_if(host_, [device](const auto& item) {
    const HostRange& range = item.second;
    if (range.device != device) return false;
    if (range.allocated) munmap(Pointer(range.address), range.size_bytes);
    return true;
  });
}

bool AddressSpace::RemoveHost(uint64_t address, bool allocated) {
  const std::lock_guard lock(mutex_);
  const auto found = host_.find(address);
  if (found == host_.end() || found->second.allocated != allocated) return false;
  host_.erase(found);
  return true;
}

bool AddressSpace::FindHost(uint64_t address, HostRange* range) const {
  const std::lock_guard lock(mutex_);
  const HostRange* found = FindRange(host_, address);
  if (found != nullptr) *range = *found;
  return found != nullptr;
}

Lookup AddressSpace::Resolve(uint64_t address, uint64_t size_bytes, bool write, int device,
                             std::vector<Segment>* segments) const {
  const std::lock_guard lock(mutex_);
  while (size_bytes > 0) {
    if (const HostRange* host = FindRange(host_, address)) {
      if (write && host->read_only) return Lookup::kDenied;
      const uint64_t length = std::min(size_bytes, host->size_bytes - (address - host->address));
      const bool by_gpu = host->pinned && length >= kReadByGpuBytes;
      std::byte* const memory = by_gpu ? host->pinned->data() + (address - host->address)
                                       : static_cast<std::byte*>(Pointer(address));
      segments->push_back({memory, length, nullptr});
      address += length;
      size_bytes -= length;
      continue;
    }
    const Mapping* mapping = FindLocked(address);
    if (mapping == nullptr) return Lookup::kUnknown;
    const auto rights = mapping->rights.find(device);
    const Rights have = rights == mapping->rights.end() ? Rights::kNone : rights->second;
    if (have == Rights::kNone || (write && have != Rights::kReadWrite)) return Lookup::kDenied;
    const uint64_t offset = address - mapping->address;
    const uint64_t length = std::min(size_bytes, mapping->size_bytes - offset);
    const std::shared_ptr<Backing>& backing = mapping->allocation->backing;
    segments->push_back({backing->data() + offset, length, backing});
    address += length;
    size_bytes -= length;
  }
  return Lookup::kOk;
}

}  // namespace gpushm::sim
