// State of a whole process that a child of fork() does not share with its parent: the child finds
// it as new. What the parent had is left alone there: another thread of the parent may have been
// in the middle of a change, or held a lock that nobody ends in the child.
//
// Threads: any. No lock is taken, so a fork at any moment is harmless.
#pragma once

#include <atomic>
#include <cstdint>

namespace gpushm {

namespace internal {
extern std::atomic<uint32_t> fork_depth;
}  // namespace internal

// 0 in the process that loaded this code, 1 in its children by fork(), 2 in their children. vfork()
// and posix_spawn() do not count: what they start runs another program.
inline uint32_t ForkDepth() noexcept {
  return internal::fork_depth.load(std::memory_order_relaxed);
}

// For variables of static storage duration. The value is made at its first use in each process and
// never destroyed.
template <typename T>
class PerProcess {
 public:
  constexpr PerProcess() = default;
  PerProcess(const PerProcess&) = delete;
  PerProcess& operator=(const PerProcess&) = delete;

  // Null: not made in this process yet.
  T* Peek() noexcept {
    Node* const node = node_.load(std::memory_order_acquire);
    return node != nullptr && node->depth == ForkDepth() ? &node->value : nullptr;
  }
  T& Get() {
    T* const value = Peek();
    return value != nullptr ? *value : Make(node_.load(std::memory_order_acquire));
  }

 private:
  struct Node {
    uint32_t depth;
    Node* parents;  // Keeps it reachable, for leak checkers.
    T value{};
  };

  [[gnu::noinline]] T& Make(Node* former) {
    if (former != nullptr && former->depth == ForkDepth()) return former->value;
    auto* const made = new Node{.depth = ForkDepth(), .parents = former};
    if (node_.compare_exchange_strong(former, made, std::memory_order_acq_rel)) return made->value;
    delete made;  // Another thread was first, and `former` is its node now.
    return former->value;
  }

  std::atomic<Node*> node_{nullptr};
};

}  // namespace gpushm
