// Ends waits for signals in the memory of one GPU. Their words get the poison value, which EndCell
// gives to a page. That needs a context, so a short-lived child, the releaser, does it; there is at
// most one at a time, for all words that are due. Words that it did not store are tried again, with
// growing pauses, as long as somebody holds the word and may wait for it. A word may get the poison
// value twice.
//
// The child's contract (releaser.h): it gets the words' memory with an order on its channel
// (child.h). It exits with 0 when everything is stored; otherwise it writes one line with the
// reason.
//
// Threads: the loop's.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/daemon/event_loop.h"
#include "sidecar/broker/child.h"
#include "sidecar/broker/ledger.h"

namespace gpushm::broker {

class Releases {
 public:
  struct Settings {
    std::string driver_folder;
    std::vector<std::string> gpu;  // From Gpu::ChildArguments.
    // Whether there is room for a child now. Otherwise it is asked again soon.
    std::function<bool()> has_room;
    uint32_t first_die = 0;  // For tests: this many children are killed before they store anything.
  };
  struct Word {
    std::string signal;
    uint64_t generation = 0;  // Of its memory.
    auto operator<=>(const Word&) const = default;
  };
  // Returns the word's memory, if somebody holds it.
  using Find = std::function<const Memory*(const Word&)>;

  Releases(EventLoop* loop, Children* children, Settings settings, Find find);
  ~Releases();
  Releases(const Releases&) = delete;
  Releases& operator=(const Releases&) = delete;

  // The writer of the signal has ended.
  void Add(Word word);
  bool is_running() const { return child_ != nullptr; }

 private:
  void StartAfter(int64_t wait_ms);
  void Start();
  Result<void> TryStart();
  void OnChildEnded(int status);
  void Ended(const Result<void>& result);
  Result<void> ResultOf(int status) const;

  EventLoop* loop_;
  Children* children_;
  Settings settings_;
  Find find_;
  std::set<Word> due_;
  std::set<Word> at_work_;  // Those of the running child.
  std::unique_ptr<Child> child_;
  std::string said_;  // By the child.
  bool timed_out_ = false;
  int64_t started_ns_ = 0;
  uint64_t start_timer_ = 0;
  uint64_t deadline_timer_ = 0;
  int64_t retry_ms_ = 0;  // 0: the last child stored everything.
};

}  // namespace gpushm::broker
