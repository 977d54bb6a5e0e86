#include "platform/driver/stream_fence.h"

namespace gpushm {

Result<bool> IsPending(const CudaApi& api, CUstream stream) {
  // cuStreamQuery would break a capture.
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  if (auto done = api.Check(api.cuStreamIsCapturing(stream, &capture), "cuStreamIsCapturing");
      !done) {
    return std::unexpected(done.error());
  }
  if (capture != CU_STREAM_CAPTURE_STATUS_NONE) {
    return Fail(Code::kInvalidArgument, "the stream is being captured into a graph",
                "detach after the graph has run");
  }
  const CUresult result = api.cuStreamQuery(stream);
  if (result == CUDA_ERROR_NOT_READY) return true;
  if (auto done = api.Check(result, "cuStreamQuery"); !done) return std::unexpected(done.error());
  return false;
}

Result<StreamFence> StreamFence::Make(const CudaApi& api) {
  CUevent event = nullptr;
  if (auto done = api.Check(api.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
      !done) {
    return std::unexpected(done.error());
  }
  return StreamFence(api, event);
}

Result<void> StreamFence::Move(CUstream stream) {
  return api_->Check(api_->cuEventRecord(event_, stream), "cuEventRecord");
}

Result<StreamFence> StreamFence::Record(const CudaApi& api, CUstream stream) {
  auto fence = Make(api);
  if (!fence) return fence;
  if (auto done = fence->Move(stream); !done) return std::unexpected(done.error());
  return fence;
}

bool StreamFence::HasPassed() const { return api_->cuEventQuery(event_) != CUDA_ERROR_NOT_READY; }

StreamFence::~StreamFence() {
  if (event_ != nullptr) api_->cuEventDestroy(event_);
}

bool AllPassed(std::vector<StreamFence>* fences) {
  std::erase_if(*fences, [](const StreamFence& fence) { return fence.HasPassed(); });
  return fences->empty();
}

}  // namespace gpushm
