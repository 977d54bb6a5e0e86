// What the keeper shows of its links: for metrics and for people. Plain values.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugin/keeper/kept.h"
#include "runtime/protocol/messages.h"
#include "runtime/registry/reader.h"

namespace gpushm::plugin {

struct LeaseView {
  std::string container;
  std::string buffer;
  uint64_t generation = 0;
  uint64_t lease_id = 0;
  uint64_t client_id = 0;
  int64_t since_unix_ns = 0;
  uint64_t mapped_bytes = 0;
  protocol::WireAccess access{};
  bool alive = true;  // Its process. False: the broker will end it, or the next one.
};

struct LinkView {
  std::string name;  // Of the allocation.
  std::string gpu;   // UUID
  uint64_t pool_bytes = 0;
  bool open = false;       // The broker's process lives.
  bool connected = false;  // And its socket stands.
  std::string program;     // As it calls itself; empty: there is none.
  KeptCounts kept;
  uint64_t closing = 0;           // Descriptors that are kept no more and not closed yet.
  std::vector<LeaseView> leases;  // By lease_id.
  // Of the broker whose process lives; null if there is none or its layout is unknown. Any thread.
  std::shared_ptr<const registry::RegistryReader> registry;
};

}  // namespace gpushm::plugin
