// The processes of a part of the run, and the blocks of hand-overs that they do: one broker, one
// producer, so many consumers, and a busy neighbour where one is asked for.
//
// A block that fails ends the session: its processes may be in any state, and are killed with it.
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
  uint64_t count = 0;  // Hand-overs at most, after those that warm up.
  uint64_t warm = 0;
  int64_t budget_ns = 0;  // No further one once the block took so long.
};

class Session {
 public:
  struct Options {
    size_t peers = 1;
    bool neighbour = false;
    uint64_t pool_bytes = 0;
  };
  static Result<std::unique_ptr<Session>> Start(const Options& options);
  const Options& options() const { return options_; }

  // All consumers take part. `staging`: some way of the cell copies over the host.
  Result<void> SetCell(uint64_t size_bytes, bool staging);
  Result<std::vector<Board::Sample>> RunBlock(const Way& way, const BlockSize& block);

 private:
  Session(const Options& options, BoardMapping board)
      : options_(options), board_(std::move(board)) {}
  Result<void> StartAll(int board_fd);
  Result<void> Link();
  // Says it to the consumers, or to all with the producer first, and hears what each answers; the
  // producer's answer, or an error with the words of whoever failed.
  enum class To { kTakers, kGiver, kAll };
  Result<std::string> Tell(To to, std::string_view text, const Deadline& deadline,
                           int descriptor = -1);

  Options options_;
  BoardMapping board_;
  std::optional<Broker> broker_;
  std::optional<Child> neighbour_;
  std::vector<Child> children_;  // The producer, then the consumers.
  uint64_t next_ = 1;            // Hand-over.
  uint64_t size_bytes_ = 0;
};

}  // namespace gpushm::bench::handover
