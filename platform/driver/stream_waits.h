// Waits that this process has put into its streams. Their number must be limited: a waiting stream
// can block all other streams of the process that share its connection to the GPU, and 40 waiting
// streams block a 41st (measured). So there are never more than the number of connections, less one
// for work that must continue.
//
// Threads: any.
#pragma once

#include <cuda.h>

#include <algorithm>
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

  // The instance of this process. Whoever calls Add or limit() passes the driver, which is asked
  // once whether the process is a client of MPS, and must be initialised.
  static StreamWaits& Instance();
  static StreamWaits& Instance(const CudaApi& api);

  // `connections`: what CUDA_DEVICE_MAX_CONNECTIONS is or would be, 1 to 32.
  explicit StreamWaits(uint32_t connections) : connections_(connections) {}
  StreamWaits() : StreamWaits(0) {}

  // Call it before a wait for `value` enters `stream`. kExhausted: too many streams wait. `word`
  // must stay mapped until it has that value; see HasPending.
  Result<void> Add(CUstream stream, const Word& word, uint64_t value);
  // Undoes Add if the wait did not enter the stream. Other threads may have added waits to the
  // stream meanwhile.
  void Remove(CUstream stream, const Word& word, uint64_t value);
  // Whether a stream of this process waits for a word of [begin, begin + bytes).
  bool HasPending(const void* begin, uint64_t bytes);
  // Whether any stream of this process waits.
  bool AnyPending();
  // Removes the waits on memory that will be unmapped, even if streams still wait there: a client
  // that is closed with work under way.
  void Forget(const void* begin, uint64_t bytes);
  // Streams that may wait at a time.
  uint32_t limit() const { return std::max(connections_.load(std::memory_order_relaxed), 1U) - 1; }

 private:
  void DropReached();

  std::atomic<uint32_t> connections_;  // 0: nobody has asked the driver yet.
  std::mutex mutex_;
  std::map<CUstream, std::vector<std::pair<const Word*, uint64_t>>> waiting_;
};

// Makes a new stream of the current context, for work that somebody waits for. If it shared its
// connection to the GPU with a waiting stream, it would be blocked, too. So while a stream waits,
// this makes streams until one proves within 20 ms that it runs, at most one for each connection.
Result<Stream> MakeRunningStream(const CudaApi& api);

}  // namespace gpushm
