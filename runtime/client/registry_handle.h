// The registry that a client reads. A reconnect replaces it as a whole while look-ups go on.
//
// Threads: any thread may call any function at any time. Read() makes no system call and takes no
// lock; two atomic increments keep the reader alive meanwhile.
//
// Invariants
//   (1) current_ points to the object that owner_ owns.
//   (2) A replaced reader is freed only after readers_ was seen at 0: a thread that enters later
//       sees the new pointer.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "contract/registry/reader.h"

namespace gpushm::client {

class RegistryHandle {
 public:
  using Reader = std::shared_ptr<const registry::RegistryReader>;

  void Replace(Reader reader) {
    const std::lock_guard lock(mutex_);
    if (owner_ != nullptr) retired_.push_back(std::move(owner_));
    owner_ = std::move(reader);
    current_.store(owner_.get(), std::memory_order_seq_cst);
    Reclaim();
  }

  // For uses that wait, or that outlive the call.
  Reader Share() const {
    const std::lock_guard lock(mutex_);
    Reclaim();
    return owner_;
  }

  // Calls `use` with the current reader; `use` must not wait. A reader must have been set before.
  template <typename Use>
  auto Read(Use use) const {
    const Guard guard(readers_);
    return use(*current_.load(std::memory_order_seq_cst));
  }

 private:
  struct Guard {
    explicit Guard(std::atomic<uint64_t>& count) : readers(count) {
      readers.fetch_add(1, std::memory_order_seq_cst);
    }
    // Pairs with the load in Reclaim: everything was read before the reader is freed.
    ~Guard() { readers.fetch_sub(1, std::memory_order_release); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    std::atomic<uint64_t>& readers;
  };

  void Reclaim() const {
    if (!retired_.empty() && readers_.load(std::memory_order_seq_cst) == 0) retired_.clear();
  }

  std::atomic<const registry::RegistryReader*> current_{nullptr};
  mutable std::atomic<uint64_t> readers_{0};
  mutable std::mutex mutex_;
  Reader owner_;
  mutable std::vector<Reader> retired_;
};

}  // namespace gpushm::client
