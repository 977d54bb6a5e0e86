// The answers of one address, which take much time and memory to make, for simultaneous callers.
//
// Invariants
//   (1) One answer is made at a time. Callers that arrive meanwhile share the next one. So what a
//       caller gets was begun after its request, except for (2).
//   (2) At most kMostAnswers answers exist, including those that slow callers still read. At that
//       number, callers get the newest one. Its age is bounded, because a caller's time is
//       (http_server.h, kAnswerMs).
//
// The class is thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "platform/base/clock.h"

namespace gpushm::plugin::metrics {

class SharedAnswer {
 public:
  using Text = std::shared_ptr<const std::string>;
  static constexpr size_t kMostAnswers = 2;

  // `make` is called from one thread at a time.
  explicit SharedAnswer(std::function<std::string()> make) : make_(std::move(make)) {}

  // Null: no answer was ready by the deadline.
  Text Get(const Deadline& deadline);

 private:
  const std::function<std::string()> make_;
  std::mutex mutex_;  // Guards the members below.
  std::condition_variable changed_;
  bool making_ = false;
  uint64_t begun_ = 0;  // Answers that were begun; each has its number.
  uint64_t made_ = 0;   // The last one that is ready.
  size_t waiting_ = 0;
  Text newest_;  // Held only while somebody waits for it.
  std::vector<std::weak_ptr<const std::string>> alive_;
};

}  // namespace gpushm::plugin::metrics
