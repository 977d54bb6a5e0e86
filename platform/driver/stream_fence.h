// What a detach waits for: the work that was on given streams when it was called.
//
// Threads: one at a time. Functions need the streams' context to be current.
#pragma once

#include <cuda.h>

#include <span>
#include <utility>
#include <vector>

#include "platform/base/status.h"
#include "platform/driver/cuda_api.h"

namespace gpushm {

// Whether a stream still has work. kInvalidArgument: it is being captured into a graph, or is none.
Result<bool> IsPending(const CudaApi& api, CUstream stream);

// An event behind the work that a stream had.
class StreamFence {
 public:
  static Result<StreamFence> Record(const CudaApi& api, CUstream stream);
  // Of no stream yet: it has passed.
  static Result<StreamFence> Make(const CudaApi& api);
  // From now on behind the work that the stream has now. A failure: its context is another one.
  Result<void> Move(CUstream stream);

  // Also true when the event's context is gone: its work is, too.
  bool HasPassed() const;

  StreamFence(StreamFence&& other) noexcept
      : api_(other.api_), event_(std::exchange(other.event_, nullptr)) {}
  StreamFence& operator=(StreamFence&& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(event_, other.event_);
    return *this;
  }
  StreamFence(const StreamFence&) = delete;
  StreamFence& operator=(const StreamFence&) = delete;
  ~StreamFence();

 private:
  StreamFence(const CudaApi& api, CUevent event) : api_(&api), event_(event) {}
  const CudaApi* api_;
  CUevent event_;
};

// Removes the fences that have passed; true if none is left.
bool AllPassed(std::vector<StreamFence>* fences);

}  // namespace gpushm
