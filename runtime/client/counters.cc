#include "runtime/client/counters.h"

#include <utility>

namespace gpushm::client {

void Counters::AddFirstAttach(int64_t took_ns) noexcept {
  const auto ns = static_cast<uint64_t>(took_ns);
  Add(Counter::kFirstAttaches);
  Add(Counter::kFirstAttachNs, ns);
  AddAt(protocol::WordOfFirstAttach(ns), 1);
}

void Counters::Use(Mapping page) {
  const std::lock_guard lock(mutex_);
  Retire();
  mapping_ = std::move(page);
  auto* const words = &static_cast<protocol::CounterPage*>(mapping_.address())->words;
  page_.store(words, std::memory_order_seq_cst);
  // A thread that still adds to own_ loses nothing: own_ stays, and the next page gets its value.
  for (size_t i = 0; i < own_.size(); ++i) {
    const uint64_t counted = own_[i].exchange(0, std::memory_order_relaxed);
    if (counted > 0) (*words)[i].fetch_add(counted, std::memory_order_relaxed);
  }
  Reclaim();
}

void Counters::UseOwn() {
  const std::lock_guard lock(mutex_);
  Retire();
  Reclaim();
}

void Counters::Retire() {
  retired_.reserve(retired_.size() + 1);  // This throws before anything changes.
  page_.store(&own_, std::memory_order_seq_cst);
  if (mapping_.address() != nullptr) retired_.push_back(std::exchange(mapping_, {}));
}

void Counters::Reclaim() {
  if (!retired_.empty() && readers_.load(std::memory_order_seq_cst) == 0) retired_.clear();
}

}  // namespace gpushm::client
