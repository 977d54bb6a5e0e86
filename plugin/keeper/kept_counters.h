// What the clients of one allocation's brokers have counted, one row for each container. It is read
// from the segment of the current broker (contract/protocol/counters.h) and added to the last
// values of its predecessors. So a broker that restarts never makes a counter decrease.
//
// Invariants
//   (1) Nothing is read from a segment before its seals, size, names and their number are checked,
//       and nothing in it is trusted to stay the same. Names are copied once, and numbers only
//       grow.
//   (2) There are at most protocol::kMaxCounterRecords containers, over all segments together.
//   (3) A segment counts once, however often a broker that reconnects sends it. It is identified by
//       its inode, which is not reused while it is mapped.
//
// Threads: one at a time.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "contract/protocol/counters.h"
#include "contract/status/status.h"
#include "platform/base/sealed_memory.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm::plugin::keeper {

struct ContainerCounters {
  std::string container;
  protocol::CounterValues values{};
  std::optional<uint64_t> private_bytes{};  // Reserved for its own allocations; absent: not known.
};

class KeptCounters {
 public:
  // Takes a broker's segment from now on. The former one is read a last time. kCorrupt: it is not a
  // valid segment. kExhausted: more containers than a pod has.
  Result<void> Take(const UniqueFd& fd);
  // The broker's process has ended: its segment is read a last time.
  void EndSegment();
  // The allocation has another holder. Returns what all containers had counted.
  protocol::CounterValues Clear();

  // The current values, by container name.
  std::vector<ContainerCounters> Read();
  // The sum of all containers.
  protocol::CounterValues Sum();
  // Time from the current broker's start until containers could connect, as it states it.
  std::optional<double> ready_seconds() const;
  // The pod's MPS, as the current broker states it. Absent: the pod has none.
  std::optional<status::Mps> mps() const;

 private:
  struct Row {
    protocol::CounterValues ended{};                  // From former segments.
    protocol::CounterValues seen{};                   // From this one.
    const protocol::CounterRecord* record = nullptr;  // In segment_; null: it is not in this one.
  };
  using Inode = std::pair<dev_t, ino_t>;

  void Look();
  const protocol::CounterSegmentHeader* header() const;

  std::map<std::string, Row> rows_;
  Mapping segment_;
  Inode inode_{};
};

}  // namespace gpushm::plugin::keeper
