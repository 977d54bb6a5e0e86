// The CUDA tensors of torch.multiprocessing, through a script that talks to the program. Its blocks
// take turns with those of the other ways.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "tests/bench/handover/session.h"

namespace gpushm::bench::handover {

inline constexpr std::string_view kTorchName = "torch";
inline constexpr std::string_view kTorchTitle = "torch.multiprocessing, each tensor a new one";
// Each consumer is a Python process with all of torch.
inline constexpr size_t kTorchPeers = 16;

class Torch {
 public:
  // Fails if torch is not available; the error says why.
  static Torch Start(size_t peers);
  size_t peers() const { return peers_; }
  std::vector<Board::Sample> RunBlock(uint64_t size_bytes, const BlockSize& block);

 private:
  Torch(Process process, Channel channel, size_t peers)
      : process_(std::move(process)), channel_(std::move(channel)), peers_(peers) {}
  Process process_;
  Channel channel_;
  size_t peers_;
};

}  // namespace gpushm::bench::handover
