// What the library counts, and how the numbers lie in memory on their way to the node's plugin
// (docs/design/counters.md has the way and why):
//   library --> its process's page, writable      made by the broker, one a client
//   broker  --> its segment, one record a container: the pages added up; read-only for the plugin
//
// Invariants
//   (1) Every number only grows, and a reader keeps it so: what goes back or is absurd, because its
//       writer is broken or lies, is taken for what was there before or for kMaxCount.
//   (2) A word is written whole; of several words nobody says that they are of one moment.
//   (3) A number keeps its place for ever. New ones take words that were 0 until then, so that
//       pages and segments of other versions can be read.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "contract/limits.h"
#include "contract/protocol/messages.h"
#include "platform/base/status.h"

namespace gpushm::protocol {

inline constexpr uint32_t kCountersVersion = 1;
inline constexpr uint64_t kCountersMagic = 0x5352544e43485347;  // "GSHCNTRS"

// Numbers alone in a word each. Errors and the histogram have words of their own behind them.
enum class Counter : size_t {
  // Of buffers alone: pages of signals, barriers and rings come and go without an attach of a user.
  kFirstAttaches = 0,   // The process had no such mapping yet.
  kCachedAttaches = 1,  // It had: no message, no mapping.
  kDetaches = 2,        // That ended a mapping, whatever made it.
  kCreates = 3,
  kReplaces = 4,
  kOffers = 5,
  kWaits = 6,   // For a buffer to be there, or to have its content, that ended well.
  kWaitNs = 7,  // However they ended.
  kWaitsTimedOut = 8,
  kLoads = 9,  // That ended well; so are the saves.
  kLoadedBytes = 10,
  kSaves = 11,
  kSavedBytes = 12,
  kFirstAttachNs = 13,   // Sum of what the histogram counts.
  kNvLinkAttaches = 14,  // First attaches by other GPUs than the buffer's own, by their Way.
  kPcieAttaches = 15,
  kStagedAttaches = 16,
};

// First attaches by how long they took: request, grant, import and mapping, without waiting for the
// buffer. A bucket has those of at most its bound that are in no bucket before it; one more has the
// rest. On an H200 they take 70 us to 0.5 ms.
inline constexpr std::array<uint64_t, 15> kFirstAttachBoundsNs = {
    25'000,     50'000,      100'000,     250'000,     500'000,
    1'000'000,  2'500'000,   5'000'000,   10'000'000,  25'000'000,
    50'000'000, 100'000'000, 250'000'000, 500'000'000, 1'000'000'000};
inline constexpr size_t kFirstAttachBuckets = kFirstAttachBoundsNs.size() + 1;

// ---- places

inline constexpr size_t kErrorWords = 32;  // One a Code.
inline constexpr size_t kErrorsAt = 32;
inline constexpr size_t kFirstAttachBucketsAt = 64;
inline constexpr size_t kCounterWords = 96;
static_assert(static_cast<size_t>(Counter::kStagedAttaches) < kErrorsAt);
static_assert(kMaxCode < kErrorWords && kErrorsAt + kErrorWords <= kFirstAttachBucketsAt);
static_assert(kFirstAttachBucketsAt + kFirstAttachBuckets <= kCounterWords);

constexpr size_t WordOf(Counter counter) { return static_cast<size_t>(counter); }
constexpr size_t WordOf(Code code) { return kErrorsAt + static_cast<size_t>(code); }
constexpr size_t WordOfFirstAttach(uint64_t took_ns) {
  const auto bound =
      std::lower_bound(kFirstAttachBoundsNs.begin(), kFirstAttachBoundsNs.end(), took_ns);
  return kFirstAttachBucketsAt +
         static_cast<size_t>(std::distance(kFirstAttachBoundsNs.begin(), bound));
}

// ---- values

// Prometheus' numbers are doubles, which are exact up to here.
inline constexpr uint64_t kMaxCount = uint64_t{1} << 53;

using CounterValues = std::array<uint64_t, kCounterWords>;

inline void AddCounters(const CounterValues& more, CounterValues* sum) {
  for (size_t i = 0; i < kCounterWords; ++i) {
    (*sum)[i] = std::min((*sum)[i], kMaxCount) + std::min(more[i], kMaxCount);
    (*sum)[i] = std::min((*sum)[i], kMaxCount);
  }
}

// ---- memory

using CounterWord = std::atomic<uint64_t>;
static_assert(CounterWord::is_always_lock_free && sizeof(CounterWord) == 8);

using CounterWords = std::array<CounterWord, kCounterWords>;

// Of one client. All of it is the client's to write.
struct CounterPage {
  CounterWords words;
  std::array<CounterWord, 512 - kCounterWords> unused;
};
static_assert(sizeof(CounterPage) == 4096);

// What is in shared memory now, by the rule (1). `seen` is what was read before.
inline void ReadCounters(const CounterWords& words, CounterValues* seen) {
  for (size_t i = 0; i < kCounterWords; ++i) {
    const uint64_t now = std::min(words[i].load(std::memory_order_relaxed), kMaxCount);
    (*seen)[i] = std::max((*seen)[i], now);
  }
}

// Of one broker: this header, then its records. Only `ready_ns` and the words change.
struct CounterSegmentConstants {
  uint64_t magic;
  uint32_t version;
  uint32_t containers;  // Records.
};
struct CounterSegmentHeader {
  CounterSegmentConstants constants;
  CounterWord ready_ns;  // From the broker's start until containers could connect; 0: not yet.
  std::array<uint64_t, 5> reserved;
};
static_assert(sizeof(CounterSegmentHeader) == 64);

struct CounterRecord {
  NameField container;
  CounterWords words;
};
static_assert(sizeof(CounterRecord) == 832);

// Containers that may connect, and "host-ipc".
inline constexpr uint32_t kMaxCounterRecords = limits::kContainers + 1;

constexpr uint64_t CounterSegmentBytes(uint32_t containers) {
  constexpr uint64_t kPage = 4096;
  const uint64_t bytes =
      sizeof(CounterSegmentHeader) + uint64_t{containers} * sizeof(CounterRecord);
  return (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace gpushm::protocol
