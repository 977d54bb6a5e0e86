// The word of a signal in device memory. It is the buffer "<name>-signal", which lives as long as
// the generation of the signal's page. Streams wait for it; hosts never read it.
//
// A waiting stream that has passed stores a number into memory of this process. That shows when no
// stream uses the word any more, so that it may be unmapped.
//
// Threads: any thread may call any function. A function that takes a stream needs a current
// context.
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
  // The word starts at 0. The caller has the signal's page and has not published it, so no other
  // process makes a word.
  static Result<std::unique_ptr<DeviceWord>> Make(Client* client, std::string_view signal,
                                                  bool writers_all, uint32_t gpu, const Wait& wait);
  // For a page that names `generation`. kStale, kNotFound: its writer has ended.
  static Result<std::unique_ptr<DeviceWord>> Attach(Client* client, std::string_view signal,
                                                    uint64_t generation, const Wait& wait);

  uint64_t generation() const { return buffer_->facts().generation; }
  CUdeviceptr address() const { return buffer_->facts().address; }

  // The stream goes on when the word reaches `value`. kExhausted: too many streams wait.
  Result<void> Await(CUstream stream, uint64_t value);
  // Whether a stream of this process is waiting for the word.
  bool HasWaits() const;
  // Whether a stream of this process that waited for `value` or more has passed.
  bool HasPassed(uint64_t value);
  // For the writer: removes the name. Waiting streams keep the memory.
  Result<void> Delete();
  Result<void> Detach() { return buffer_.Detach(); }

 private:
  // The waits of one stream, numbered 1, 2, 3 ...
  struct Waiting {
    CUstream stream = nullptr;
    uint64_t last = 0;
    std::deque<uint64_t> values;  // Those not yet seen to have passed; the last has number `last`.
  };
  // More streams than this cannot wait at one time.
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

// One operation of cuStreamBatchMemOp: the stream stores `value`, and its earlier work becomes
// visible first.
CUstreamBatchMemOpParams StoreOf(CUdeviceptr at, uint64_t value);

}  // namespace gpushm::client
