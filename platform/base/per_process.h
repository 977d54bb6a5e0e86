// State of a process that a child of fork() does not share with its parent: the child starts with
// new state. The parent's state is not touched in the child. Another thread of the parent may have
// been in the middle of a change, or may hold a lock that nobody in the child will release.
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
// and posix_spawn() do not count, because the process that they start runs another program.
inline uint32_t ForkDepth() noexcept {
  return internal::fork_depth.load(std::memory_order_relaxed);
}

// For variables of static storage duration. Each process makes the value at its first use and never
// destroys it.
template <typename T>
class PerProcess {
 public:
  constexpr PerProcess() = default;
  PerProcess(const PerProcess&) = delete;
  PerProcess& operator=(const PerProcess&) = delete;

  // Null if the value does not exist in this process yet.
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
    Node* parents;  // Keeps it reachable for leak checkers.
    T value{};
  };

  [[gnu::noinline]] T& Make(Node* former) {
    if (former != nullptr && former->depth == ForkDepth()) return former->value;
    auto* const made = new Node{.depth = ForkDepth(), .parents = former};
    if (node_.compare_exchange_strong(former, made, std::memory_order_acq_rel)) return made->value;
    delete made;  // Another thread was first; `former` is now its node.
    return former->value;
  }

  std::atomic<Node*> node_{nullptr};
};

}  // namespace gpushm
