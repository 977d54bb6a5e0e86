// Waits that this process has put into its streams. They are scarce: a stream that waits can hold
// up others of the process, as many as share its connection to the GPU; and 40 of them starve a
// 41st (measured). So there are never more than connections, less one for work that must go on.
//
// Threads: any.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "platform/base/status.h"
#include "platform/driver/cuda_api.h"
#include "platform/driver/device.h"

namespace gpushm {

class StreamWaits {
 public:
  using Word = std::atomic<uint64_t>;

  // Of this process.
  static StreamWaits& Instance();

  // `connections`: CUDA_DEVICE_MAX_CONNECTIONS, 1 to 32.
  explicit StreamWaits(uint32_t connections) : limit_(connections - 1) {}

  // Before a wait for `value` enters `stream`. kExhausted: too many streams wait. `word` must stay
  // mapped until it has that value, see HasPending.
  Result<void> Add(CUstream stream, const Word& word, uint64_t value);
  // It did not enter after all. Other threads may have added waits to the stream meanwhile.
  void Remove(CUstream stream, const Word& word, uint64_t value);
  // Whether a stream of this process waits for a word of [begin, begin + bytes).
  bool HasPending(const void* begin, uint64_t bytes);
  // Whether any stream of this process waits.
  bool AnyPending();
  // The memory goes, whatever waits for it: a client that is closed with work under way.
  void Forget(const void* begin, uint64_t bytes);
  uint32_t limit() const { return limit_; }

 private:
  void DropReached();

  const uint32_t limit_;
  std::mutex mutex_;
  std::map<CUstream, std::vector<std::pair<const Word*, uint64_t>>> waiting_;
};

// A new stream of the current context, for work that somebody waits for. One that shared its
// connection to the GPU with a stream that waits would wait with it: while one waits, streams are
// made until one shows within 20 ms that it runs, at most as many as there are connections.
Result<Stream> MakeRunningStream(const CudaApi& api);

}  // namespace gpushm
