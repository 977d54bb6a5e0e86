// What the clients of one allocation's brokers have counted, a row a container: read from the
// segment of the broker that is there (contract/protocol/counters.h), on top of what its
// predecessors' said last. So a broker that starts anew takes nothing back.
//
// Invariants
//   (1) Nothing is taken from a segment before seals, size, names and their number are checked, and
//       nothing in it is believed to stay: names are copied once, numbers only grow.
//   (2) At most protocol::kMaxCounterRecords containers, of all segments together.
//   (3) A segment counts once, however often a broker that connects again sends it: it is known by
//       its inode, which is its own while it is mapped.
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
#include "platform/base/sealed_memory.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm::plugin {

struct ContainerCounters {
  std::string container;
  protocol::CounterValues values{};
};

class KeptCounters {
 public:
  // A broker's segment from here on. The former one is read a last time. kCorrupt: it is none;
  // kExhausted: more containers than a pod has.
  Result<void> Take(const UniqueFd& fd);
  // The broker's process is gone: its segment is read a last time.
  void EndSegment();
  // The allocation has another holder. What was counted by then, of all containers.
  protocol::CounterValues Clear();

  // Now, by name.
  std::vector<ContainerCounters> Read();
  // The sum of all containers.
  protocol::CounterValues Sum();
  // From the start of the broker that is there until containers could connect, as it says.
  std::optional<double> ready_seconds() const;

 private:
  struct Row {
    protocol::CounterValues ended{};  // Of former segments.
    protocol::CounterValues seen{};   // Of this one.
  };
  using Inode = std::pair<dev_t, ino_t>;

  void Look();

  std::map<std::string, Row> rows_;
  Mapping segment_;
  Inode inode_{};
  std::vector<std::pair<const protocol::CounterWords*, Row*>> records_;  // Of segment_.
};

}  // namespace gpushm::plugin
