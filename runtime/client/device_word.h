// The word of a signal in device memory: the buffer "<name>-signal", which lives as long as the
// generation of the signal's page does. Streams wait for it; hosts never look at it.
//
// Each stream that waits stores a number into memory of this process when it has passed: so it is
// known when nothing looks at the word any more, which may be unmapped then.
//
// Threads: any thread may call any function. What takes a stream needs a current context.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "platform/base/status.h"
#include "runtime/client/client.h"
#include "runtime/client/held.h"
#include "runtime/client/page_mapping.h"
#include "runtime/client/wait.h"

namespace gpushm::client {

class DeviceWord {
 public:
  // At 0. The caller has the signal's page and has not published it, so that nobody else makes one.
  static Result<std::unique_ptr<DeviceWord>> Make(Client* client, std::string_view signal,
                                                  bool writers_all, const Wait& wait);
  // Of a page that says `generation`. kStale, kNotFound: its writer has ended.
  static Result<std::unique_ptr<DeviceWord>> Attach(Client* client, std::string_view signal,
                                                    uint64_t generation, const Wait& wait);

  uint64_t generation() const { return buffer_->facts().generation; }
  CUdeviceptr address() const { return buffer_->facts().address; }

  // The stream goes on when the word is at `value`. kExhausted: too many streams wait.
  Result<void> Await(CUstream stream, uint64_t value);
  // Whether a stream of this process waits for it.
  bool HasWaits() const;
  // Whether a stream of this process has waited for `value` or more, and has passed.
  bool HasPassed(uint64_t value);
  // Of the writer: the name goes with it. Whoever waits keeps the memory.
  Result<void> Delete();
  Result<void> Detach() { return buffer_.Detach(); }

 private:
  // The waits of one stream, by number: 1, 2, 3 ...
  struct Waiting {
    CUstream stream = nullptr;
    uint64_t last = 0;
    std::deque<uint64_t> values;  // Of those that were not seen to have passed; to `last`.
  };
  // More than streams can wait at a time.
  static constexpr size_t kStreams = 64;

  DeviceWord(Held buffer, std::unique_ptr<PageMapping> passed)
      : buffer_(std::move(buffer)), passed_(std::move(passed)) {}
  static Result<std::unique_ptr<DeviceWord>> Of(Held buffer);
  const signal::Word& passed(size_t index) const {
    return static_cast<const signal::Word*>(passed_->address())[index];
  }
  void DropPassed();
  Result<size_t> PlaceOf(CUstream stream);

  Held buffer_;
  std::unique_ptr<PageMapping> passed_;
  std::mutex mutex_;
  std::array<Waiting, kStreams> waiting_;  // Under mutex_.
  uint64_t passed_value_ = 0;              // Under mutex_: the largest.
};

// One operation of cuStreamBatchMemOp: the stream stores `value`, and what it did before is visible
// first.
CUstreamBatchMemOpParams StoreOf(CUdeviceptr at, uint64_t value);

}  // namespace gpushm::client
