// The memory behind a name: GPU memory, given by its descriptor, a cuIpc handle or the descriptors
// of its blocks, or the page of a signal, barrier or ring, given by its memfd.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "contract/protocol/messages.h"
#include "platform/base/unique_fd.h"

namespace gpushm::broker {

// One of several allocations in which offered memory lies.
struct Block {
  UniqueFd descriptor;
  uint64_t mapped_bytes = 0;
};

struct Memory {
  bool is_page() const { return transport == protocol::Transport::kHost; }
  bool has_descriptor() const { return transport == protocol::Transport::kVmm || is_page(); }
  // What it takes of its GPU, if an application allocated it; otherwise 0.
  uint64_t offered_bytes() const {
    if (pooled || is_page()) return 0;
    return protocol::OfferedBytes(transport, size_bytes, mapped_bytes);
  }
  // All descriptors, which it then lacks.
  std::vector<UniqueFd> TakeDescriptors() {
    std::vector<UniqueFd> all;
    if (descriptor) all.push_back(std::move(descriptor));
    for (Block& block : blocks) all.push_back(std::move(block.descriptor));
    blocks.clear();
    return all;
  }

  protocol::Transport transport = protocol::Transport::kVmm;
  uint64_t size_bytes = 0;    // As requested.
  uint64_t mapped_bytes = 0;  // Size of the whole allocation, or of all blocks.
  UniqueFd descriptor;        // For kVmm and kHost.
  UniqueFd alarm;             // Of a page, once somebody has asked for it (docs/design/waiting.md).
  std::vector<Block> blocks;  // For kBlocks, in the order of their addresses.
  std::array<uint8_t, 64> cuipc_handle{};
  uint64_t offset = 0;
  int32_t offerer_pid = 0;
  bool pooled = true;  // Allocated by the broker, so it counts against its GPU's pool.
  uint32_t gpu = 0;    // The number of its GPU. Pages have 0.
};

}  // namespace gpushm::broker
