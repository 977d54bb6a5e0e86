// Shared by the tests of rings, queues and barriers: memory that children of fork() share, a sync
// page in it, and frames whose bytes show which frame they are.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "contract/sync/frames.h"
#include "platform/base/clock.h"

namespace gpushm::sync::testing {

inline constexpr int64_t kLongMs = 20'000;

class SharedMemory {
 public:
  explicit SharedMemory(uint64_t bytes)
      : bytes_(bytes),
        address_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    EXPECT_NE(address_, MAP_FAILED);
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory() { munmap(address_, bytes_); }
  void* address() const { return address_; }
  uint64_t bytes() const { return bytes_; }

 private:
  const uint64_t bytes_;
  void* const address_;
};

// The words of slots. This is plain memory, so that a thread sanitizer sees writes over words that
// are being read.
inline constexpr uint32_t kFrameWords = 16;

// A ring or queue with its buffer.
struct SharedFrames {
  SharedFrames(Kind kind, const FrameSettings& with)
      : settings(with),
        page_memory(BytesFor(with.cells(), with.body_bytes())),
        buffer(uint64_t{with.frames} * kFrameWords * sizeof(uint64_t)),
        page(Page::Make(page_memory.address(), page_memory.bytes(), kind, with.cells(),
                        with.body_bytes(), with.ToHeader())) {}

  uint64_t* slot(uint32_t index) const {
    return static_cast<uint64_t*>(buffer.address()) + uint64_t{index} * kFrameWords;
  }
  // Fills a frame's bytes with its number, differently in each word.
  void Fill(uint32_t index, uint64_t seq) const {
    for (uint32_t i = 0; i < kFrameWords; ++i) slot(index)[i] = seq * (2 * i + 1);
  }
  bool Has(uint32_t index, uint64_t seq) const {
    for (uint32_t i = 0; i < kFrameWords; ++i) {
      if (slot(index)[i] != seq * (2 * i + 1)) return false;
    }
    return true;
  }

  const FrameSettings settings;
  SharedMemory page_memory;
  SharedMemory buffer;
  Page page;
};

// Metadata that shows to which frame it belongs.
inline Metadata MetadataOf(uint64_t seq) {
  Metadata metadata;
  for (size_t i = 0; i < metadata.size(); ++i) {
    metadata[i] = static_cast<std::byte>(seq >> (i % 8 * 8) ^ i);
  }
  return metadata;
}

// Ends a frame's work on the GPU.
inline void Store(const Point& point) { point.word->store(point.value, std::memory_order_release); }

// A stand-in for a stream: does its tasks in order, later.
class LateStream {
 public:
  LateStream() : thread_([this] { Work(); }) {}
  LateStream(const LateStream&) = delete;
  LateStream& operator=(const LateStream&) = delete;
  // Returns once all tasks are done.
  ~LateStream() {
    Do(nullptr);
    thread_.join();
  }

  void Do(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    more_.notify_one();
  }

 private:
  void Work() {
    for (;;) {
      std::unique_lock lock(mutex_);
      more_.wait(lock, [this] { return !work_.empty(); });
      const auto work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      if (!work) return;
      work();
    }
  }

  std::mutex mutex_;
  std::condition_variable more_;
  std::deque<std::function<void()>> work_;
  std::thread thread_;
};

// Waits until the sync page has its writer. Real readers never see it earlier: the client publishes
// a sync page only after its writer has claimed it.
inline bool AwaitWriter(const Page& page) {
  for (Poll poll(Deadline::AfterMs(kLongMs)); StateOf(page.cell(0)) == CellState::kFree;) {
    if (!poll.Again()) return false;
  }
  return true;
}

inline void SpinFor(int64_t ns) {
  for (const int64_t until_ns = MonotonicNs() + ns; MonotonicNs() < until_ns;) {
  }
}

// Children of fork() in the roles of participants, and the broker's role: it waits for children
// that end and then ends their cells. A child that fails shows it by its exit status.
class Children {
 public:
  explicit Children(const Page& page) : page_(page) {}
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;
  ~Children() {
    while (!leases_.empty()) Kill(leases_.begin()->second);
  }

  void Start(uint64_t lease, const std::function<int()>& part) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // If the test is killed, its children are killed, too.
      _exit(part());
    }
    leases_[child] = lease;
  }
  void Kill(uint64_t lease) {
    for (const auto& [child, its] : leases_) {
      if (its != lease) continue;
      kill(child, SIGKILL);
      return Reap(child, /*killed=*/true);
    }
  }
  // `start` starts one more child and returns its lease. Three work. Six times, one is killed at a
  // random moment and replaced. Returns the leases of those that still work.
  template <typename Start>
  std::vector<uint64_t> KillAndReplace(std::mt19937* random, Start start) {
    std::vector<uint64_t> working;
    for (int i = 0; i < 3; ++i) working.push_back(start());
    for (int i = 0; i < 6; ++i) {
      SpinFor(static_cast<int64_t>((*random)() % 4'000'000));
      uint64_t& victim = working[(*random)() % working.size()];
      Kill(victim);
      victim = start();
    }
    SpinFor(static_cast<int64_t>((*random)() % 4'000'000));
    return working;
  }
  // Waits until each has ended by itself.
  void Join() {
    while (!leases_.empty()) Reap(leases_.begin()->first, /*killed=*/false);
  }

 private:
  void Reap(pid_t child, bool killed) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    // It may have ended by itself before it was killed.
    EXPECT_TRUE(status == 0 || (killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
        << "lease " << leases_[child] << ": exit status " << WEXITSTATUS(status) << ", signal "
        << (WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    EndCellsOf(page_, leases_[child], killed ? CellState::kDied : CellState::kLeft);
    leases_.erase(child);
  }

  const Page page_;
  std::map<pid_t, uint64_t> leases_;
};

}  // namespace gpushm::sync::testing
