#include "sidecar/broker/counters.h"

#include <algorithm>

#include "contract/limits.h"

namespace gpushm::broker {

using protocol::CounterPage;
using protocol::CounterValues;

Result<CounterBook> CounterBook::Create(std::vector<std::string> containers) {
  // A pod's container may also be named "host-ipc".
  std::sort(containers.begin(), containers.end());
  containers.erase(std::unique(containers.begin(), containers.end()), containers.end());
  if (containers.size() > protocol::kMaxCounterRecords) {
    return Fail(Code::kExhausted, Concat(containers.size(), " containers are too many"),
                Concat("a broker serves at most ", limits::kContainers));
  }
  const auto count = static_cast<uint32_t>(containers.size());
  Result<WritableSegment> segment =
      MakeSealed("counters", protocol::CounterSegmentBytes(count), Writers::kMaker);
  if (!segment) return std::unexpected(segment.error());
  return CounterBook(std::move(containers), std::move(*segment));
}

CounterBook::CounterBook(std::vector<std::string> containers, WritableSegment segment)
    : containers_(std::move(containers)), ended_(containers_.size()), segment_(std::move(segment)) {
  header().constants = {.magic = protocol::kCountersMagic,
                        .version = protocol::kCountersVersion,
                        .containers = static_cast<uint32_t>(containers_.size())};
  for (size_t i = 0; i < containers_.size(); ++i) {
    record(i).container = protocol::ToNameField(containers_[i]);
  }
}

protocol::CounterSegmentHeader& CounterBook::header() const {
  return *static_cast<protocol::CounterSegmentHeader*>(segment_.mapping.address());
}

protocol::CounterRecord& CounterBook::record(size_t container) const {
  auto* const first =
      static_cast<std::byte*>(segment_.mapping.address()) + sizeof(protocol::CounterSegmentHeader);
  return reinterpret_cast<protocol::CounterRecord*>(first)[container];
}

Result<int> CounterBook::PageOf(const Client& client) {
  const auto known = pages_.find(client.id);
  if (known != pages_.end()) return known->second.memory.fd.get();
  const auto container = std::find(containers_.begin(), containers_.end(), client.container);
  if (container == containers_.end()) {
    return Fail(Code::kInternal,
                Concat("no counters exist for container \"", client.container, '"'));
  }
  Result<WritableSegment> memory = MakeSealed("counters", sizeof(CounterPage), Writers::kAll);
  if (!memory) return std::unexpected(memory.error());
  Page& page = pages_[client.id];
  page.memory = std::move(*memory);
  page.container = static_cast<size_t>(container - containers_.begin());
  return page.memory.fd.get();
}

void CounterBook::End(uint64_t client_id) {
  const auto found = pages_.find(client_id);
  if (found == pages_.end()) return;
  Publish();
  protocol::AddCounters(found->second.seen, &ended_[found->second.container]);
  pages_.erase(found);
}

void CounterBook::Publish() {
  std::vector<CounterValues> sums = ended_;
  for (auto& [id, page] : pages_) {
    const auto& words = static_cast<CounterPage*>(page.memory.mapping.address())->words;
    protocol::ReadCounters(words, &page.seen);
    protocol::AddCounters(page.seen, &sums[page.container]);
  }
  for (size_t c = 0; c < sums.size(); ++c) {
    for (size_t i = 0; i < protocol::kCounterWords; ++i) {
      record(c).words[i].store(sums[c][i], std::memory_order_relaxed);
    }
  }
}

void CounterBook::SetReady(int64_t took_ns) {
  header().ready_ns.store(static_cast<uint64_t>(took_ns), std::memory_order_relaxed);
}

void CounterBook::SetPrivate(const std::map<std::string, uint64_t>& bytes) {
  for (size_t i = 0; i < containers_.size(); ++i) {
    const auto found = bytes.find(containers_[i]);
    if (found != bytes.end()) record(i).private_bytes.store(found->second);
  }
}

void CounterBook::SetMps(const status::MpsState& state) {
  const bool ready = state.IsReady();
  protocol::MpsWords& words = header().mps;
  words.clients.store(ready ? state.clients : 0);
  words.daemon_restarts.store(state.daemon_restarts);
  words.server_restarts.store(state.server_restarts);
  using enum protocol::MpsWord;
  words.state.store(static_cast<uint64_t>(ready ? kReady : kNotReady));
}

}  // namespace gpushm::broker
