#include "platform/driver/stream_waits.h"

#include <poll.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "platform/base/clock.h"
#include "platform/base/per_process.h"
#include "platform/driver/stream_fence.h"

namespace gpushm {
namespace {

// From the CUDA programming guide: 8 unless set, 32 at most. From NVIDIA's documentation of MPS: a
// client has 2 unless set.
constexpr uint32_t kDefaultConnections = 8;
constexpr uint32_t kDefaultConnectionsUnderMps = 2;
constexpr uint32_t kMostConnections = 32;
constexpr int kRunsWithinMs = 20;

uint32_t ConnectionsUnlessSet(const CudaApi& api) {
  CUdevice device = 0;
  int under_mps = 0;
  if (api.cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
      api.cuDeviceGetAttribute(&under_mps, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device) !=
          CUDA_SUCCESS) {
    // A driver before CUDA 12 does not know the question.
    under_mps = getenv("CUDA_MPS_PIPE_DIRECTORY") != nullptr ? 1 : 0;
  }
  return under_mps == 0 ? kDefaultConnections : kDefaultConnectionsUnderMps;
}

uint32_t Connections(const CudaApi& api) {
  const char* const text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  const std::string_view view(text == nullptr ? "" : text);
  uint32_t number = 0;
  const auto parsed = std::from_chars(view.data(), view.data() + view.size(), number);
  if (parsed.ec != std::errc() || number < 1) return ConnectionsUnlessSet(api);
  return std::min(number, kMostConnections);
}

}  // namespace

StreamWaits& StreamWaits::Instance() {
  static constinit PerProcess<StreamWaits> waits;
  return waits.Get();
}

StreamWaits& StreamWaits::Instance(const CudaApi& api) {
  StreamWaits& waits = Instance();
  if (waits.connections_.load(std::memory_order_relaxed) == 0) {
    waits.connections_.store(Connections(api), std::memory_order_relaxed);
  }
  return waits;
}

void StreamWaits::DropReached() {
  for (auto& [stream, waits] : waiting_) {
    std::erase_if(waits, [](const auto& wait) {
      return wait.first->load(std::memory_order_relaxed) >= wait.second;
    });
  }
  std::erase_if(waiting_, [](const auto& item) { return item.second.empty(); });
}

Result<void> StreamWaits::Add(CUstream stream, const Word& word, uint64_t value) {
  const std::lock_guard lock(mutex_);
  DropReached();
  const auto known = waiting_.find(stream);
  if (known == waiting_.end() && waiting_.size() >= limit()) {
    return Fail(Code::kExhausted,
                Concat(waiting_.size(), waiting_.size() == 1 ? " stream" : " streams",
                       " of this process can wait at a time, because it has ", limit() + 1,
                       limit() == 0 ? " connection" : " connections",
                       " to the GPU; one more could block work that must continue"),
                "wait on the host, use fewer streams, or set "
                "CUDA_DEVICE_MAX_CONNECTIONS (up to 32) before the process starts");
  }
  waiting_[stream].emplace_back(&word, value);
  return {};
}

void StreamWaits::Remove(CUstream stream, const Word& word, uint64_t value) {
  const std::lock_guard lock(mutex_);
  const auto known = waiting_.find(stream);
  if (known == waiting_.end()) return;
  auto& waits = known->second;
  const auto wait = std::find(waits.begin(), waits.end(), std::pair(&word, value));
  if (wait != waits.end()) waits.erase(wait);
  if (waits.empty()) waiting_.erase(known);
}

void StreamWaits::Forget(const void* begin, uint64_t bytes) {
  const auto* const from = static_cast<const std::byte*>(begin);
  const std::lock_guard lock(mutex_);
  for (auto& [stream, waits] : waiting_) {
    std::erase_if(waits, [&](const auto& wait) {
      const auto* const at = reinterpret_cast<const std::byte*>(wait.first);
      return at >= from && at < from + bytes;
    });
  }
  std::erase_if(waiting_, [](const auto& item) { return item.second.empty(); });
}

bool StreamWaits::AnyPending() {
  const std::lock_guard lock(mutex_);
  DropReached();
  return !waiting_.empty();
}

bool StreamWaits::HasPending(const void* begin, uint64_t bytes) {
  const auto* const from = static_cast<const std::byte*>(begin);
  const std::lock_guard lock(mutex_);
  DropReached();
  return std::any_of(waiting_.begin(), waiting_.end(), [&](const auto& item) {
    return std::any_of(item.second.begin(), item.second.end(), [&](const auto& wait) {
      const auto* const at = reinterpret_cast<const std::byte*>(wait.first);
      return at >= from && at < from + bytes;
    });
  });
}

Result<Stream> MakeRunningStream(const CudaApi& api) {
  StreamWaits& waits = StreamWaits::Instance(api);
  std::vector<Stream> held_up;  // Kept meanwhile, so that the next stream gets another connection.
  for (;;) {
    Result<Stream> stream = Stream::Create(api);
    if (!stream || held_up.size() >= waits.limit() || !waits.AnyPending()) return stream;
    const Result<StreamFence> fence = StreamFence::Record(api, stream->get());
    if (!fence) return std::unexpected(fence.error());
    const Deadline deadline = Deadline::AfterMs(kRunsWithinMs);
    while (!fence->HasPassed() && !deadline.Passed()) poll(nullptr, 0, 1);
    if (fence->HasPassed()) return stream;
    held_up.push_back(std::move(*stream));
  }
}

}  // namespace gpushm
