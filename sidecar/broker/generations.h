// The memory behind the names of a pod: every generation that exists, by its number, and what all
// of them use together.
//
// Invariants
//   (1) A number is used once, over all brokers of a pod.
//   (2) The budget counts each generation from Add() or Restore() to Free(), and its description.
//   (3) Memory that is no longer needed appears in TakeFreed() once.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "platform/base/digest.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "sidecar/broker/budget.h"
#include "sidecar/broker/memory.h"

namespace gpushm::broker {

struct Generation {
  std::string buffer;
  Memory memory;
  uint32_t leases = 0;
  uint64_t publisher_client = 0;  // The owner of an unpublished generation; 0: it is published.
  uint64_t offerer_client = 0;    // For kCuIpc: removed with this client.
  int64_t created_unix_ns = 0;
  std::optional<uint64_t> content_bytes{};  // If not set: all of the generation.
  Digest digest{};                          // Of the content; only if content_bytes is set.
  UniqueFd description{};                   // Sealed host memory; invalid if there is none.
  uint64_t description_bytes = 0;
};

class Generations {
 public:
  using Numbers = std::set<uint64_t>;

  Generations(Budget budget, uint64_t first) : budget_(std::move(budget)), next_(first) {}

  Budget& budget() { return budget_; }
  const Budget& budget() const { return budget_; }

  // Returns its number.
  uint64_t Add(Generation generation);
  // Why one that an earlier broker had, with that number, cannot be restored; empty if it can.
  std::string Problem(uint64_t number, const Generation& generation) const;
  void Restore(uint64_t number, Generation generation);
  // It is not restored, and its number is not used again.
  void Refuse(uint64_t number, Generation generation);
  // Nothing refers to it any more.
  void Free(uint64_t number);
  // Memory that never became a generation.
  void Free(Memory memory) { freed_.push_back(std::move(memory)); }
  // Takes the place of the former one. An invalid `memory`: there is none from now on. False: there
  // was none, and there is none.
  bool SetDescription(uint64_t number, UniqueFd memory, uint64_t bytes);

  Generation& At(uint64_t number) { return all_.at(number); }
  const Generation& At(uint64_t number) const { return all_.at(number); }
  const std::map<uint64_t, Generation>& all() const { return all_; }
  // Of a name, whatever buffers it has belonged to.
  const Numbers& OfName(const std::string& name) const;
  const std::map<std::string, Numbers>& names() const { return of_name_; }
  // Those that the client offered by a handle, which are removed with it.
  const Numbers& OfferedBy(uint64_t client) const;

  std::vector<Memory> TakeFreed() { return std::exchange(freed_, {}); }
  // All memory, whoever holds it, for the broker's end.
  std::vector<Memory> LetGo();

 private:
  void Skip(uint64_t number);
  void Enter(uint64_t number, Generation generation);

  Budget budget_;
  uint64_t next_;
  std::map<uint64_t, Generation> all_;
  std::map<std::string, Numbers> of_name_;
  std::map<uint64_t, Numbers> offered_by_;
  std::vector<Memory> freed_;
};

}  // namespace gpushm::broker
