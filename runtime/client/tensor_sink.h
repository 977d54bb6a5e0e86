// A safetensors file of a buffer whose bytes a broker saves into a pipe, as they are in the buffer:
// a helper thread takes them out and writes the file.
//
// Threads: one uses it, which is not the helper.
#pragma once

#include <atomic>
#include <memory>

#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "platform/transfer/crew.h"
#include "runtime/client/open_file.h"

namespace gpushm::client {

class TensorSink {
 public:
  // Both must outlive it. kExhausted: the system allows no further thread.
  static Result<TensorSink> Start(const TensorsToSave& tensors, const OpenFile& to);
  TensorSink(TensorSink&&) noexcept = default;
  TensorSink& operator=(TensorSink&&) = delete;
  ~TensorSink();

  // The pipe's end for the broker.
  const OpenFile& writer() const { return state_->writer; }
  // The file cannot be written; Finish says why.
  bool failed() const { return state_->failed.load(std::memory_order_acquire); }
  // Waits until the file is written, if the broker has saved everything. Otherwise (`stop`) it ends
  // the helper.
  Result<void> Finish(bool stop);

 private:
  struct State {
    State(const TensorsToSave& of, const OpenFile& file) : tensors(of), to(file) {}
    void Write();
    Result<void> TryWrite();
    Result<void> Read(std::byte* bytes, uint64_t size_bytes);

    const TensorsToSave& tensors;
    const OpenFile& to;
    UniqueFd reader;
    OpenFile writer;
    std::atomic<bool> stop{false};
    std::atomic<bool> failed{false};
    Result<void> result;
    Crew::Batch batch;
    std::unique_ptr<Crew> crew;  // Declared last: its helper works on the rest.
  };
  explicit TensorSink(std::unique_ptr<State> state) : state_(std::move(state)) {}

  std::unique_ptr<State> state_;
};

}  // namespace gpushm::client
