// Ends waits for signals in device memory: their words get the poison, as EndCell gives it to a
// page. That needs a context, so a short-lived child does it, the releaser; the only one at a time,
// for all words that are due. What it did not do is tried again, with growing pauses, as long as
// somebody holds the word and so may wait for it. A word may get its poison twice.
//
// The child's contract (releaser.h): it gets the words' memory with an order on its channel
// (child.h); it exits with 0 when all is stored, else it writes why, a line.
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
    int device = 0;
    uint32_t first_die = 0;  // For tests: so many children are killed before they store anything.
  };
  struct Word {
    std::string signal;
    uint64_t generation = 0;  // Of its memory.
    auto operator<=>(const Word&) const = default;
  };
  // The word's memory, if somebody holds it.
  using Find = std::function<const Memory*(const Word&)>;

  Releases(EventLoop* loop, Children* children, Settings settings, Find find);
  ~Releases();
  Releases(const Releases&) = delete;
  Releases& operator=(const Releases&) = delete;

  // The writer of the signal has ended.
  void Add(Word word);

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
  std::set<Word> at_work_;  // The child's.
  std::unique_ptr<Child> child_;
  std::string said_;  // By the child.
  bool timed_out_ = false;
  int64_t started_ns_ = 0;
  uint64_t start_timer_ = 0;
  uint64_t deadline_timer_ = 0;
  int64_t retry_ms_ = 0;  // 0: the last one did all.
};

}  // namespace gpushm::broker
