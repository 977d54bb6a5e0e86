// The counters of the library, and their layout in memory on the way to the node's plugin
// (docs/design/counters.md has the path and the reasons):
//   library --> its process's page, writable. The broker makes one for each client.
//   broker --> its segment, with the sums over the pages, one record for each container. The plugin
//       maps it read-only.
// The segment also has what the broker alone knows of the pod: its MPS, and the private memory of
// each container. The plugin shows that as it is.
//
// Invariants
//   (1) Every counter only grows, and readers enforce it. If a value goes back or is absurd, the
//       reader uses the former value or kMaxCount: its writer is broken or lies.
//   (2) Each word is written atomically; several words need not belong to the same moment.
//   (3) A number keeps its place permanently. New ones take words that were 0 until then, so that
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

// Plain numbers, one word each. Errors and the histogram have words of their own after these.
enum class Counter : size_t {
  // These three count buffers only: sync pages come and go without an attach by the user.
  kFirstAttaches = 0,   // The process did not have such a mapping yet.
  kCachedAttaches = 1,  // It had one: no message, no mapping.
  kDetaches = 2,        // Detaches that ended a mapping, however it was made.
  kCreates = 3,
  kReplaces = 4,
  kOffers = 5,
  kWaits = 6,   // Successful waits for a buffer to exist, or to have its content.
  kWaitNs = 7,  // Of all waits, successful or not.
  kWaitsTimedOut = 8,
  kLoads = 9,  // Successful loads; kSaves likewise.
  kLoadedBytes = 10,
  kSaves = 11,
  kSavedBytes = 12,
  kFirstAttachNs = 13,   // Sum of the durations in the histogram.
  kNvLinkAttaches = 14,  // First attaches by GPUs other than the buffer's own, by their PeerWay.
  kPcieAttaches = 15,
  kStagedAttaches = 16,
};

// Histogram of first attaches by duration: request, grant, import and mapping, without waiting for
// the buffer. A bucket counts those that took at most its bound and are in no lower bucket; one
// more bucket counts the rest. On an H200 they take 70 us to 0.5 ms.
inline constexpr std::array<uint64_t, 15> kFirstAttachBoundsNs = {
    25'000,     50'000,      100'000,     250'000,     500'000,
    1'000'000,  2'500'000,   5'000'000,   10'000'000,  25'000'000,
    50'000'000, 100'000'000, 250'000'000, 500'000'000, 1'000'000'000};
inline constexpr size_t kFirstAttachBuckets = kFirstAttachBoundsNs.size() + 1;

// ---- places

inline constexpr size_t kErrorWords = 32;  // One for each Code.
inline constexpr size_t kErrorsAt = 32;
inline constexpr size_t kFirstAttachBucketsAt = 64;
inline constexpr size_t kCounterWords = 88;
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

// Prometheus' numbers are doubles, which are exact up to this value.
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

// One client's page. The client may write all of it.
struct CounterPage {
  CounterWords words;
  std::array<CounterWord, 512 - kCounterWords> unused;
};
static_assert(sizeof(CounterPage) == 4096);

// Reads shared memory under invariant (1). `seen` has the values that were read before.
inline void ReadCounters(const CounterWords& words, CounterValues* seen) {
  for (size_t i = 0; i < kCounterWords; ++i) {
    const uint64_t now = std::min(words[i].load(std::memory_order_relaxed), kMaxCount);
    (*seen)[i] = std::max((*seen)[i], now);
  }
}

// One broker's segment: this header, then its records. Only words change.
struct CounterSegmentConstants {
  uint64_t magic;
  uint32_t version;
  uint32_t containers;  // Number of records.
};
// How the pod's MPS is. A program that does not know these words leaves them 0.
enum class MpsWord : uint64_t { kNone = 0, kNotReady = 1, kReady = 2 };
struct MpsWords {
  CounterWord state;  // MpsWord
  CounterWord clients;
  CounterWord daemon_restarts;
  CounterWord server_restarts;
};
struct CounterSegmentHeader {
  CounterSegmentConstants constants;
  CounterWord ready_ns;  // From the broker's start until containers could connect; 0: not yet.
  MpsWords mps;
  uint64_t reserved;
};
static_assert(sizeof(CounterSegmentHeader) == 64);

struct CounterRecord {
  NameField container;
  CounterWords words;
  CounterWord private_bytes;  // Reserved for the container's own allocations; 0: not known.
  std::array<uint64_t, 7> reserved;
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
