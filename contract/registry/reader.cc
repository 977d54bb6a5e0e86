#include "contract/registry/reader.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "contract/limits.h"
#include "contract/registry/checksum.h"

namespace gpushm::registry {
namespace {

// Entries of the name map that a look-up without the lock probes. At most half of the map is used,
// so runs of this length do not happen by chance.
constexpr size_t kLockFreeProbes = 64;

inline uint64_t HashOf(const Name& name) {
  const std::array<uint64_t, Name::kWords> words = name.words();
  const uint64_t hash = Checksum(std::span<const uint64_t, Name::kWords>(words));
  return hash == 0 ? 1 : hash;  // 0 means "none" to NameMap.
}

}  // namespace

Result<std::unique_ptr<RegistryReader>> RegistryReader::Open(UniqueFd fd) {
  Result<Mapping> mapping = MapSealedSegment(fd);
  if (!mapping) return std::unexpected(mapping.error());
  const Result<HeaderConstants> header = ValidateHeader(mapping->address(), mapping->bytes());
  if (!header) return std::unexpected(header.error());
  const void* address = mapping->address();
  return std::unique_ptr<RegistryReader>(new RegistryReader(std::move(*mapping), address, *header));
}

Result<std::unique_ptr<RegistryReader>> RegistryReader::OverMemory(const void* address,
                                                                   size_t bytes) {
  const Result<HeaderConstants> header = ValidateHeader(address, bytes);
  if (!header) return std::unexpected(header.error());
  return std::unique_ptr<RegistryReader>(new RegistryReader(Mapping(), address, *header));
}

RegistryReader::RegistryReader(Mapping mapping, const void* address,
                               const HeaderConstants& constants)
    : mapping_(std::make_shared<Mapping>(std::move(mapping))),
      header_(static_cast<const SegmentHeader*>(address)),
      slots_(static_cast<const std::byte*>(address) + constants.header_size),
      constants_(constants),
      slot_count_(constants.slot_count),
      slot_stride_(constants.slot_stride),
      record_words_(constants.record_words),
      map_(slot_count_),
      valid_(slot_count_),
      seen_(slot_count_, 0),
      corrupt_(slot_count_, false) {
  const std::lock_guard lock(mutex_);
  CatchUp();
}

// The last owner unmaps it. Others only keep the addresses.
RegistryReader::~RegistryReader() {
  if (mapping_.use_count() > 1) mapping_->Blank();
}

inline SlotRead RegistryReader::ReadWords(uint32_t slot, uint64_t* words, uint64_t* version) const {
  return ReadSlot(Version(slot), Copies(slot), record_words_, record_words_, words, version);
}

// If kLive and *problem is null, found->record has the slot's record and found->ref.version its
// version.
inline SlotRead RegistryReader::ReadRecord(uint32_t slot, Found* found,
                                           const char** problem) const {
  std::atomic<uint64_t>& valid = valid_[slot];
  *problem = nullptr;
  if (record_words_ == kRecordWords) {
    // The usual size as a constant, so that the compiler unrolls the copy directly to its
    // destination.
    const Word* copies = Copies(slot);
    // The version, itself a cache miss, selects the copy. Prefetching both copies avoids a second
    // miss after it.
    __builtin_prefetch(&valid);
    for (size_t line = 0; line < 2 * kRecordWords; line += 8) __builtin_prefetch(&copies[line]);
    const SlotRead read = ReadSlot(Version(slot), copies, kRecordWords, kKnownWords, &found->record,
                                   &found->ref.version);
    if (read != SlotRead::kLive) return read;
    // The record of a version never changes, so its checksum is compared once. Its values are
    // checked each time, because a process that can write the segment may change it nevertheless.
    if (valid.load(std::memory_order_relaxed) == found->ref.version) {
      *problem = FieldsProblem(found->record);
      return read;
    }
  }
  std::array<uint64_t, kMaxRecordWords> words;
  const SlotRead read = ReadWords(slot, words.data(), &found->ref.version);
  if (read != SlotRead::kLive) return read;
  *problem = DecodeFields(std::span(words).first(record_words_), &found->record);
  if (*problem == nullptr) valid.store(found->ref.version, std::memory_order_relaxed);
  return read;
}

RegistryReader::Probe RegistryReader::ProbeFor(const Name& name, uint64_t hash, size_t max_probes,
                                               Found* found) const {
  Probe result = Probe::kNone;
  map_.Find(hash, max_probes, [&](uint32_t slot) {
    const char* problem = nullptr;
    switch (ReadRecord(slot, found, &problem)) {
      case SlotRead::kNotLive:
        return false;
      case SlotRead::kContended:
        result = Probe::kContended;
        return false;
      case SlotRead::kLive:
        break;
    }
    if (problem != nullptr) {
      found->ref.slot = slot;  // For the text of the error.
      result = Probe::kCorrupt;
      return false;
    }
    if (found->record.name != name) return false;
    found->ref.slot = slot;
    result = Probe::kFound;
    return true;
  });
  return result;
}

Result<Found> RegistryReader::Find(std::string_view text) const {
  if (text.size() > limits::kNameBytes) {
    return Fail(Code::kInvalidArgument, Concat("\"", text, "\" is not a valid buffer name"),
                "use 1 to 63 of a-z, 0-9 and -, with a letter or digit at both ends");
  }
  const Name name(text);
  const uint64_t hash = HashOf(name);
  Result<Found> found(std::in_place);
  if (ProbeFor(name, hash, kLockFreeProbes, &*found) != Probe::kFound) {
    found = FindSlow(name, hash);
  }
  return found;  // One return statement, so that the record is not copied.
}

// The answer "none" is correct even if the segment changes meanwhile. The map reflects a state
// after this call began, and a record that differs from the map was changed since then. So there
// was a moment within this call without that name.
Result<Found> RegistryReader::FindSlow(const Name& name, uint64_t hash) const {
  if (!name.IsLabel()) {
    return Fail(Code::kInvalidArgument, Concat("\"", name.view(), "\" is not a valid buffer name"),
                "use 1 to 63 of a-z, 0-9 and -, with a letter or digit at both ends");
  }
  Result<Found> found(std::in_place);
  const std::lock_guard lock(mutex_);
  CatchUp();
  Probe probe = ProbeFor(name, hash, map_.capacity(), &*found);
  if (probe == Probe::kNone && !complete_) probe = Probe::kContended;
  if (probe == Probe::kNone && corrupt_count_ != 0) {
    probe = Probe::kCorrupt;
    found->ref.slot = static_cast<uint32_t>(std::ranges::find(corrupt_, true) - corrupt_.begin());
  }
  switch (probe) {
    case Probe::kFound:
      return found;
    case Probe::kContended:
      return Fail(Code::kContended,
                  Concat("buffer \"", name.view(), "\" changed during every attempt to read it"),
                  "try again");
    case Probe::kCorrupt:
      return Fail(Code::kCorrupt,
                  Concat("the registry is broken at the record of buffer \"", name.view(),
                         "\" or one that may be it: ", ProblemOf(found->ref.slot)),
                  "restart the pod and report this as a bug");
    case Probe::kNone:
      break;
  }
  return Fail(Code::kNotFound, Concat("no buffer \"", name.view(), "\""),
              "run gpushmctl ls to see the names");
}

std::string RegistryReader::ReasonOf(const Found& found) const {
  if (ReasonCode(found.record) == 0 || (constants_.incompat_flags & kIncompatReasons) == 0 ||
      found.ref.slot >= slot_count_) {
    return {};
  }
  ReasonWords words;
  uint64_t version = 0;
  const SlotRead read = ReadSlot(Version(found.ref.slot), Reasons(found.ref.slot), kReasonWords,
                                 kReasonWords, words.data(), &version);
  if (read != SlotRead::kLive || version != found.ref.version) return {};
  std::array<char, sizeof words> bytes;
  std::memcpy(bytes.data(), words.data(), sizeof words);
  const std::string_view text(bytes.data(), strnlen(bytes.data(), bytes.size()));
  return IsReason(text) ? std::string(text) : std::string();
}

std::string RegistryReader::ProblemOf(uint32_t slot) const {
  std::array<uint64_t, kMaxRecordWords> words;
  uint64_t version = 0;
  if (ReadWords(slot, words.data(), &version) == SlotRead::kLive) {
    const auto record = DecodeRecord(std::span(words).first(record_words_));
    if (!record) return Concat("slot ", slot, ": ", record.error().what());
  }
  return Concat("slot ", slot, ", which has changed since");
}

void RegistryReader::CatchUp() const {
  const uint64_t to = table_version();
  if (complete_ && to == scanned_) return;
  const bool try_log = complete_;
  complete_ = true;  // Unless Refresh resets it.
  if (!try_log || !CatchUpFromLog(to)) {
    for (uint32_t slot = 0; slot < slot_count_; ++slot) Refresh(slot);
  }
  scanned_ = to;
}

bool RegistryReader::CatchUpFromLog(uint64_t to) const {
  std::array<uint32_t, kChangeLogEntries> changed;
  const uint64_t changes = to - scanned_;
  const uint64_t entries = constants_.change_log_entries;
  if (changes > changed.size() || changes >= entries) return false;
  const std::atomic<uint32_t>* log = header_->change_log.data();
  for (uint64_t i = 0; i < changes; ++i) {
    changed[i] = log[(scanned_ + 1 + i) % entries].load(std::memory_order_relaxed);
  }
  // Pairs with the release fence of SegmentWriter::Announce: if a later change has overwritten an
  // entry, the table version shows it.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (header_->table_version.load(std::memory_order_relaxed) - scanned_ >= entries) return false;
  for (uint64_t i = 0; i < changes; ++i) {
    if (changed[i] < slot_count_) Refresh(changed[i]);
  }
  return true;
}

void RegistryReader::Refresh(uint32_t slot) const {
  if (Version(slot).load(std::memory_order_acquire) == seen_[slot]) return;
  std::array<uint64_t, kMaxRecordWords> words;
  uint64_t version = 0;
  uint64_t hash = 0;
  bool corrupt = false;
  switch (ReadWords(slot, words.data(), &version)) {
    case SlotRead::kContended:
      complete_ = false;
      return;
    case SlotRead::kNotLive:
      break;
    case SlotRead::kLive: {
      BufferRecord record;
      corrupt = DecodeRecord(std::span(words).first(record_words_), &record) != nullptr;
      hash = corrupt ? 0 : HashOf(record.name);
      break;
    }
  }
  map_.Set(slot, hash);
  corrupt_count_ = corrupt_count_ + (corrupt ? 1 : 0) - (corrupt_[slot] ? 1 : 0);
  corrupt_[slot] = corrupt;
  seen_[slot] = version;
}

Result<std::vector<BufferRecord>> RegistryReader::List() const {
  std::vector<BufferRecord> records;
  for (uint32_t slot = 0; slot < slot_count_; ++slot) {
    std::array<uint64_t, kMaxRecordWords> words;
    uint64_t version = 0;
    const SlotRead read = ReadWords(slot, words.data(), &version);
    if (read == SlotRead::kNotLive) continue;
    if (read == SlotRead::kContended) {
      return Fail(Code::kContended,
                  Concat("slot ", slot, " changed during every attempt to read it"), "try again");
    }
    Result<BufferRecord> record = DecodeRecord(std::span(words).first(record_words_));
    if (!record) return std::unexpected(record.error().WithContext(Concat("slot ", slot)));
    records.push_back(*record);
  }
  return records;
}

bool RegistryReader::WaitForChange(uint64_t seen, const Deadline& deadline) const {
  const Deadline slice = Deadline::AfterMs(kWaitSliceMs);
  for (;;) {
    // Read before the table version, because the writer changes it afterwards. If the version below
    // is still the old one, the sleep below ends at once or is woken.
    const uint32_t wake_word = header_->wake_word.load(std::memory_order_acquire);
    if (table_version() != seen) return true;
    const int64_t sleep_ns = std::min(slice.RemainingNs(), deadline.RemainingNs());
    if (sleep_ns == 0) return false;
    const timespec timeout{.tv_sec = 0, .tv_nsec = sleep_ns};
    if (syscall(SYS_futex, &header_->wake_word, FUTEX_WAIT, wake_word, &timeout, nullptr, 0) != 0 &&
        errno != EAGAIN && errno != EINTR && errno != ETIMEDOUT) {
      // If a system call filter forbids futex, poll every millisecond.
      const timespec nap{.tv_sec = 0, .tv_nsec = std::min<int64_t>(sleep_ns, 1'000'000)};
      nanosleep(&nap, nullptr);
    }
  }
}

}  // namespace gpushm::registry
