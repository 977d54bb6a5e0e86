// What this broker's clients count (contract/protocol/counters.h): a page for each client, and the
// segment in which the plugin sees the sums, one record a container.
//
// A page is its client's to write, all of it at any time. What it says only ever moves the numbers
// of the client's own container, and these never fall; what a client that is gone counted stays.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "contract/protocol/counters.h"
#include "platform/base/sealed_memory.h"
#include "platform/base/status.h"
#include "sidecar/broker/ledger.h"

namespace gpushm::broker {

class CounterBook {
 public:
  // Of all containers that will ever be, by name; at most protocol::kMaxCounterRecords.
  static Result<CounterBook> Create(std::vector<std::string> containers);

  // The client's page: a memfd that stays this object's. One that it has is given again.
  Result<int> PageOf(const Client& client);
  // The client is gone: its page is read a last time. It may have none.
  void End(uint64_t client_id);
  bool has_pages() const { return !pages_.empty(); }

  // Reads the pages and shows the sums.
  void Publish();
  void SetReady(int64_t took_ns);

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
  std::vector<protocol::CounterValues> ended_;  // By container: of clients that are gone.
  WritableSegment segment_;
  std::map<uint64_t, Page> pages_;  // By client id.
};

}  // namespace gpushm::broker
