#include "runtime/client/attachment.h"

#include <utility>

namespace gpushm::client {
namespace {

bool IsUsable(BufferState state) {
  return state == BufferState::kReady || state == BufferState::kWriterDied;
}

}  // namespace

Attachment::Attachment(Facts facts, Memory memory, Lease lease, RegistryHandle::Reader reader)
    : facts_(std::move(facts)),
      memory_(std::move(memory)),
      unpublished_(facts_.unpublished),
      content_bytes_(facts_.size_bytes),
      lease_(lease) {
  See(reader, 0, kNever, false);
}

void Attachment::See(const RegistryHandle::Reader& reader, uint32_t slot, uint64_t version,
                     bool ready) const {
  const std::lock_guard lock(mutex_);
  Sighting* latest = sightings_.empty() ? nullptr : sightings_.back().get();
  if (reader_ != reader || latest->slot != slot) {
    sightings_.push_back(std::make_unique<Sighting>(reader->addresses(), &reader->VersionOf(slot),
                                                    slot, kNever, kNever));
    latest = sightings_.back().get();
    reader_ = reader;
  }
  // A thread that loads an older version with this Sighting takes the slow path one more time.
  latest->ready_version.store(ready ? version : kNever, std::memory_order_relaxed);
  latest->version.store(orphaned() ? kNever : version, std::memory_order_relaxed);
  // Pairs with the acquire load of Latest().
  sighting_.store(latest, std::memory_order_release);
}

std::optional<Code> Attachment::CurrentSlow() const {
  if (orphaned()) return Code::kOrphaned;
  const RegistryHandle::Reader reader = LatestReader();
  const auto found = reader->Find(facts_.name);
  if (!found) {
    if (found.error().code() != Code::kNotFound) return found.error().code();
    if (unpublished()) return std::nullopt;
    return Code::kStale;
  }
  if (found->record.generation > facts_.generation) return Code::kStale;
  if (found->record.generation < facts_.generation) {
    // An older generation is visible until this one is published.
    if (unpublished()) return std::nullopt;
    return Code::kStale;
  }
  NoteContent(registry::ContentBytes(found->record));
  See(reader, found->ref.slot, found->ref.version, IsUsable(found->record.state));
  return orphaned() ? std::optional(Code::kOrphaned) : std::nullopt;
}

bool Attachment::IsUnchangedAndReady() const {
  const Sighting& seen = Latest();
  return seen.Shows(seen.ready_version.load(std::memory_order_relaxed)) && !orphaned();
}

uint64_t Attachment::ContentBytes() const {
  const auto found = LatestReader()->Find(facts_.name);
  if (found && found->record.generation == facts_.generation && !orphaned()) {
    NoteContent(registry::ContentBytes(found->record));
  }
  return content_bytes_.load(std::memory_order_relaxed);
}

uint32_t Attachment::State() const {
  const auto found = LatestReader()->Find(facts_.name);
  if (!found || found->record.generation < facts_.generation) return 0;
  return found->record.state;
}

Lease Attachment::lease() const {
  const std::lock_guard lock(mutex_);
  return lease_;
}

bool Attachment::device_lost() const {
  const RegistryHandle::Reader reader = LatestReader();
  return page() != nullptr ? reader->all_devices_lost() : reader->device_lost(facts_.gpu_number);
}

RegistryHandle::Reader Attachment::LatestReader() const {
  const std::lock_guard lock(mutex_);
  return reader_;
}

void Attachment::Adopt(RegistryHandle::Reader reader, Lease lease) {
  {
    const std::lock_guard lock(mutex_);
    lease_ = lease;
  }
  See(reader, 0, kNever, false);
}

void Attachment::Advance(uint64_t generation, RegistryHandle::Reader reader, Lease lease) {
  facts_.generation = generation;
  facts_.unpublished = false;
  NoteContent(facts_.size_bytes);
  orphaned_.store(false, std::memory_order_release);
  Adopt(std::move(reader), lease);
}

bool Attachment::BeginFill() {
  Fill former = fill();
  while (former != Fill::kRunning) {
    if (fill_.compare_exchange_weak(former, Fill::kRunning, std::memory_order_acq_rel)) return true;
  }
  return false;
}

void Attachment::AcceptFill() {
  Fill failed = Fill::kFailed;
  fill_.compare_exchange_strong(failed, Fill::kNone, std::memory_order_acq_rel);
}

void Attachment::Orphan() {
  orphaned_.store(true, std::memory_order_release);
  const std::lock_guard lock(mutex_);
  lease_.id = 0;
  sightings_.back()->ready_version.store(kNever, std::memory_order_relaxed);
  sightings_.back()->version.store(kNever, std::memory_order_relaxed);
}

}  // namespace gpushm::client
