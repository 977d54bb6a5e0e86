// The work that a detach waits for: what given streams had to do when it was called.
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

// Whether a stream still has work. kInvalidArgument: it is being captured into a graph, or it is
// not a stream.
Result<bool> IsPending(const CudaApi& api, CUstream stream);

// An event behind the work that a stream had at a given time.
class StreamFence {
 public:
  static Result<StreamFence> Record(const CudaApi& api, CUstream stream);
  // A new fence belongs to no stream and has passed.
  static Result<StreamFence> Make(const CudaApi& api);
  // Moves the fence behind the work that the stream has now. Fails if the stream belongs to another
  // context.
  Result<void> Move(CUstream stream);

  // Also true if the event's context is gone, because its work is gone with it.
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

// Removes the fences that have passed; returns true if none is left.
bool AllPassed(std::vector<StreamFence>* fences);

}  // namespace gpushm
