// What this broker's clients count (contract/protocol/counters.h): one page for each client, and
// the segment in which the plugin sees the sums, one record for each container.
//
// A client may write all of its page at any time. Its content only affects the numbers of the
// client's own container, and these never decrease. The counts of a client that has ended are kept.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "contract/protocol/counters.h"
#include "contract/status/mps_state.h"
#include "platform/base/sealed_memory.h"
#include "platform/base/status.h"
#include "sidecar/broker/ledger.h"

namespace gpushm::broker {

class CounterBook {
 public:
  // `containers` holds the names of all containers that will ever be served; at most
  // protocol::kMaxCounterRecords.
  static Result<CounterBook> Create(std::vector<std::string> containers);

  // The client's page, as a memfd that this object owns. If the client already has one, the same
  // one is returned.
  Result<int> PageOf(const Client& client);
  // The client has ended: its page, if it has one, is read a last time.
  void End(uint64_t client_id);
  bool has_pages() const { return !pages_.empty(); }

  // Reads the pages and shows the sums.
  void Publish();
  void SetReady(int64_t took_ns);
  // What the pod reserved for each container's own allocations.
  void SetPrivate(const std::map<std::string, uint64_t>& bytes);
  // How the pod's MPS is.
  void SetMps(const status::MpsState& state);

  // The segment.
  int fd() const { return segment_.fd.get(); }

 private:
  struct Page {
    WritableSegment memory;
    size_t container = 0;
    protocol::CounterValues seen{};
  };

  CounterBook(std::vector<std::string> containers, WritableSegment segment);
  protocol::CounterSegmentHeader& header() const;
  protocol::CounterRecord& record(size_t container) const;

  std::vector<std::string> containers_;
  std::vector<protocol::CounterValues> ended_;  // By container: counts of clients that have ended.
  WritableSegment segment_;
  std::map<uint64_t, Page> pages_;  // By client id.
};

}  // namespace gpushm::broker
