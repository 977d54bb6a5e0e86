// Whether a published buffer has its content, and if not, why not: who loads it, how far the load
// is, and what a load left that ended early. The states are drawn in docs/design/states.md; MoveTo
// asserts the two rules that hold whoever calls:
//   (1) Only a load fails: a buffer becomes FAILED only if it was LOADING.
//   (2) The death of a writer makes nothing usable: a buffer becomes WRITER_DIED only if its
//       content was there.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "contract/registry/record.h"
#include "platform/base/status.h"

namespace gpushm::broker {

using registry::BufferState;

// Why a buffer has no content: what its load waits for, or why it failed.
struct Reason {
  Code code{};
  std::string text{};   // One line; empty: nobody stated it.
  bool passes = false;  // Another try may find it otherwise.

  friend bool operator==(const Reason&, const Reason&) = default;
};

class Content {
 public:
  Content() = default;
  // As an earlier broker stated it; see Restore().
  Content(BufferState state, uint64_t loaded_bytes) : state_(state), loaded_bytes_(loaded_bytes) {}

  BufferState state() const { return state_; }
  bool is_there() const {
    return state_ == BufferState::kReady || state_ == BufferState::kWriterDied;
  }
  // While it is not there.
  const Reason& reason() const { return reason_; }
  // How far the load is, or the last one was.
  uint64_t loaded_bytes() const { return loaded_bytes_; }
  bool is_being_loaded() const { return loader_ != 0 || one_writer_loads_; }
  uint64_t loader() const { return loader_; }  // The client; 0: none, or nobody knows which.
  bool IsLoadedBy(uint64_t client) const { return loader_ != 0 && loader_ == client; }
  bool IsLoadedByOther(uint64_t client) const { return loader_ != 0 && loader_ != client; }
  // Why nobody may read it; fine if it is there.
  Result<void> Check(const std::string& name) const;

  // Somebody will load it, from the start.
  void Await();
  // `client` begins to load, or goes on.
  void Load(uint64_t client, uint64_t loaded_bytes);
  void Complete(uint64_t loaded_bytes);
  // It is that of another generation from now on.
  void Renew() { Complete(0); }
  // The client states why it is not there. Without a load in progress it fails if that does not
  // pass. False: nothing changed.
  bool State(uint64_t client, Reason reason);
  // The client cannot go on. False: it does not load. The reason is the one that it stated, or
  // `why`. `tries_again`: it is awaited again if the reason passes.
  bool GiveUp(uint64_t client, const Reason& why, bool tries_again);
  // False: the content is not there.
  bool LoseWriter();
  // What an earlier broker had, of which the clients `writers` still have the buffer for writing.
  // `awaited`: a load is to come, if none has begun. `from_file`: a loader begins again.
  void Restore(const std::set<uint64_t>& writers, bool awaited, bool from_file);

 private:
  void MoveTo(BufferState state);

  BufferState state_ = BufferState::kReady;
  Reason reason_;
  uint64_t loaded_bytes_ = 0;
  uint64_t loader_ = 0;            // The client that loads.
  bool one_writer_loads_ = false;  // One of its writers loads; an earlier broker knew which one.
};

}  // namespace gpushm::broker
