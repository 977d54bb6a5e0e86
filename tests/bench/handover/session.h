// The processes for a part of the run, and their blocks of hand-overs: one broker, one producer, a
// number of consumers, and a busy neighbour on request.
//
// A failed block ends the session: its processes may be in any state, and are killed with it.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "tests/bench/handover/way.h"

namespace gpushm::bench::handover {

struct BlockSize {
  uint64_t count = 0;  // Hand-overs at most, after the warm-up.
  uint64_t warm = 0;
  int64_t budget_ns = 0;  // No further one after the block took this long.
};

class Session {
 public:
  struct Options {
    size_t peers = 1;
    bool neighbour = false;
    uint64_t pool_bytes = 0;
  };
  explicit Session(const Options& options);
  const Options& options() const { return options_; }

  // All consumers take part. `staging`: a way of the cell copies through host memory.
  void SetCell(uint64_t size_bytes, bool staging);
  std::vector<Board::Sample> RunBlock(const Way& way, const BlockSize& block);

 private:
  // Sends the text to the consumers, or to all with the producer first, and reads every answer.
  // Returns the producer's answer, or an error with the message of the process that failed.
  enum class To { kTakers, kGiver, kAll };
  std::string Tell(To to, std::string_view text, const Deadline& deadline, int descriptor = -1);

  Options options_;
  Broker broker_;
  std::shared_ptr<Board> board_;
  std::optional<Child> neighbour_;
  std::vector<Child> children_;  // The producer, then the consumers.
  uint64_t next_ = 1;            // Hand-over.
  uint64_t size_bytes_ = 0;
};

}  // namespace gpushm::bench::handover
