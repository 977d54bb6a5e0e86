// For tests: a broker's counter segment, as the protocol defines it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "contract/protocol/counters.h"
#include "platform/base/sealed_memory.h"

namespace gpushm::plugin::keeper::testing {

class CounterSegment {
 public:
  explicit CounterSegment(const std::vector<std::string>& containers)
      : memory_(*MakeSealed("counters",
                            protocol::CounterSegmentBytes(static_cast<uint32_t>(containers.size())),
                            Writers::kMaker)) {
    header().constants = {.magic = protocol::kCountersMagic,
                          .version = protocol::kCountersVersion,
                          .containers = static_cast<uint32_t>(containers.size())};
    for (size_t i = 0; i < containers.size(); ++i) {
      record(i).container = protocol::ToNameField(containers[i]);
    }
  }

  protocol::CounterSegmentHeader& header() {
    return *static_cast<protocol::CounterSegmentHeader*>(memory_.mapping.address());
  }
  protocol::CounterRecord& record(size_t i) {
    auto* const bytes = static_cast<std::byte*>(memory_.mapping.address());
    return reinterpret_cast<protocol::CounterRecord*>(bytes +
                                                      sizeof(protocol::CounterSegmentHeader))[i];
  }
  protocol::CounterWord& word(size_t container, protocol::Counter counter) {
    return record(container).words[protocol::WordOf(counter)];
  }
  const UniqueFd& fd() const { return memory_.fd; }
  UniqueFd TakeFd() { return std::move(memory_.fd); }

 private:
  WritableSegment memory_;
};

}  // namespace gpushm::plugin::keeper::testing
