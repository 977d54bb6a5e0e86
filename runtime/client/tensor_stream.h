// The bytes of a model as they will be in the buffer, written into a pipe by a helper thread: for a
// broker, which loads a pipe as it is.
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

class TensorStream {
 public:
  // `source` must outlive it. kExhausted: the system allows no further thread.
  static Result<TensorStream> Start(const LoadSource& source);
  TensorStream(TensorStream&&) noexcept = default;
  TensorStream& operator=(TensorStream&&) = delete;
  ~TensorStream();

  // The pipe's end for the broker.
  const OpenFile& reader() const { return state_->reader; }
  // The writer cannot go on; Finish says why. The pipe stays open, so that the broker does not take
  // its end for that of the model.
  bool failed() const { return state_->failed.load(std::memory_order_acquire); }
  // Stops the writer, if it still writes, and waits for it. Returns why it failed.
  Result<void> Finish();

 private:
  struct State {
    explicit State(const LoadSource& of) : source(of) {}
    void Write();
    Result<void> TryWrite();

    const LoadSource& source;
    OpenFile reader;
    UniqueFd writer;
    std::atomic<bool> stop{false};
    std::atomic<bool> failed{false};
    Result<void> result;
    Crew::Batch batch;
    std::unique_ptr<Crew> crew;  // Declared last: its helper works on the rest.
  };
  explicit TensorStream(std::unique_ptr<State> state) : state_(std::move(state)) {}

  std::unique_ptr<State> state_;
};

}  // namespace gpushm::client
