// The counters of a client for the node's metrics (contract/protocol/counters.h). They go into the
// page that its broker gave it. While there is no such page, they go into an own page whose values
// the next one gets.
//
// Threads: any thread may call any function. Add makes no system call and takes no lock. Besides
// the increment itself, two atomic increments keep the page mapped meanwhile: 7 ns together.
//
// Invariants
//   (1) `page_` is never null, so no caller has to check for a page.
//   (2) A replaced page is unmapped only after readers_ was seen at 0: a thread that comes later
//       sees the new pointer.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "contract/protocol/counters.h"
#include "platform/base/sealed_memory.h"

namespace gpushm::client {

class Counters {
 public:
  using Counter = protocol::Counter;

  void Add(Counter counter, uint64_t by = 1) noexcept { AddAt(protocol::WordOf(counter), by); }
  void AddError(Code code) noexcept { AddAt(protocol::WordOf(code), 1); }
  void AddFirstAttach(int64_t took_ns) noexcept;

  // From now on, counts go into `page`, a mapped protocol::CounterPage.
  void Use(Mapping page);
  // The broker of the page is gone, or may be gone: counts go into own_.
  void UseOwn();

 private:
  void AddAt(size_t word, uint64_t by) noexcept {
    readers_.fetch_add(1, std::memory_order_seq_cst);
    (*page_.load(std::memory_order_seq_cst))[word].fetch_add(by, std::memory_order_relaxed);
    // Pairs with the load in Reclaim: everything counted happened before the page is unmapped.
    readers_.fetch_sub(1, std::memory_order_release);
  }
  void Retire();   // Under mutex_.
  void Reclaim();  // Under mutex_.

  std::atomic<uint64_t> readers_{0};
  std::atomic<protocol::CounterWords*> page_{&own_};
  protocol::CounterWords own_{};
  std::mutex mutex_;
  Mapping mapping_;               // Under mutex_. The memory of page_, unless that is own_.
  std::vector<Mapping> retired_;  // Under mutex_.
};

}  // namespace gpushm::client
