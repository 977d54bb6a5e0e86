#include "plugin/kubelet/broadcast.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "platform/base/status.h"

namespace gpushm::plugin::kubelet {
namespace {

// Cancelled streams end quickly. Without this limit, a defect in gRPC could delay the plugin's end.
constexpr std::chrono::seconds kStreamsEnd{5};

}  // namespace

class Broadcast::Streams {
 public:
  Streams(std::unique_ptr<grpc::ServerCompletionQueue> queue, Await await, OnStreams on_streams)
      : queue_(std::move(queue)), await_(std::move(await)), on_streams_(std::move(on_streams)) {
    AwaitStream();
    thread_ = std::thread([this] { Loop(); });
  }

  void Send(const std::string& message) {
    const grpc::Slice slice(message);
    const std::lock_guard lock(mutex_);
    message_ = grpc::ByteBuffer(&slice, 1);
    ++version_;
    for (auto& [id, stream] : streams_) Write(stream.get());
  }

  void EndStreams() {
    const std::lock_guard lock(mutex_);
    for (auto& [id, stream] : streams_) End(stream.get());
  }

  void CancelStreams() {
    const std::lock_guard lock(mutex_);
    for (auto& [id, stream] : streams_) {
      if (stream->open) stream->context.TryCancel();
    }
  }

  void Shutdown(grpc::Server* server, const Deadline& deadline) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      stopping_ = true;
      for (auto& [id, stream] : streams_) {
        End(stream.get());
        if (stream->open && stream->writing) stream->context.TryCancel();
      }
    }
    server->Shutdown(std::chrono::system_clock::now() +
                     std::chrono::nanoseconds(deadline.RemainingNs()));
    {
      // gRPC aborts the process if an operation starts on a queue that was shut down, and its
      // server does not wait for streams that this object's thread has not seen yet.
      std::unique_lock lock(mutex_);
      ended_.wait_for(lock, kStreamsEnd, [this] { return streams_.empty(); });
    }
    queue_->Shutdown();
    thread_.join();
  }

 private:
  // One call. The tags of its operations are its number and a Step, so that an operation that
  // completes after its end finds nothing.
  enum class Step : uintptr_t { kOpened, kDone, kWritten, kFinished };
  struct Stream {
    explicit Stream(uint64_t number) : id(number), writer(&context) {}
    const uint64_t id;
    grpc::ServerContext context;
    grpc::ByteBuffer request;
    Writer writer;
    bool open = false;
    bool writing = false;
    bool finishing = false;
    bool done = false;    // By either side.
    bool ending = false;  // Finish it when the current write is done.
    uint64_t sent = 0;    // The version_ of the message that was sent last.
  };

  static void* Tag(const Stream& stream, Step step) {
    return reinterpret_cast<void*>((stream.id << 2) | static_cast<uintptr_t>(step));
  }

  // All functions below need mutex_ held.
  void AwaitStream() {
    auto stream = std::make_unique<Stream>(++last_id_);
    stream->context.AsyncNotifyWhenDone(Tag(*stream, Step::kDone));
    await_(&stream->context, &stream->request, &stream->writer, queue_.get(),
           Tag(*stream, Step::kOpened));
    streams_.emplace(stream->id, std::move(stream));
  }

  void Write(Stream* stream) {
    if (!stream->open || stream->writing || stream->ending || stream->done) return;
    if (stream->sent == version_) return;
    stream->sent = version_;
    stream->writing = true;
    stream->writer.Write(message_, Tag(*stream, Step::kWritten));
  }

  void End(Stream* stream) {
    if (!stream->open || stream->done || stream->finishing) return;
    stream->ending = true;
    if (stream->writing) return;
    stream->finishing = true;
    stream->writer.Finish(grpc::Status::OK, Tag(*stream, Step::kFinished));
  }

  size_t CountOpen() const {
    return static_cast<size_t>(
        std::count_if(streams_.begin(), streams_.end(),
                      [](const auto& item) { return item.second->open && !item.second->done; }));
  }

  void Advance(uint64_t id, Step step, bool ok) {
    const auto found = streams_.find(id);
    if (found == streams_.end()) return;
    Stream* const stream = found->second.get();
    switch (step) {
      case Step::kOpened:
        if (!ok) {  // The server stops; no more events come for this stream.
          streams_.erase(found);
          return;
        }
        stream->open = true;
        if (stopping_) {
          stream->context.TryCancel();
          break;
        }
        AwaitStream();
        Write(stream);
        break;
      case Step::kWritten:
        stream->writing = false;
        if (ok && stream->ending) End(stream);
        if (ok) Write(stream);
        break;
      case Step::kFinished:
        stream->finishing = false;
        break;
      case Step::kDone:
        stream->done = true;
        break;
    }
    if (stream->done && !stream->writing && !stream->finishing) streams_.erase(id);
  }
  // End of the functions that need mutex_.

  void Loop() {
    void* tag = nullptr;
    bool ok = false;
    size_t told = 0;
    while (queue_->Next(&tag, &ok)) {
      const auto bits = reinterpret_cast<uintptr_t>(tag);
      size_t open = 0;
      {
        const std::lock_guard lock(mutex_);
        Advance(bits >> 2, static_cast<Step>(bits & 3), ok);
        open = CountOpen();
        if (streams_.empty()) ended_.notify_all();
        if (stopping_) continue;
      }
      if (std::exchange(told, open) != open && on_streams_) on_streams_(open);
    }
  }

  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  const Await await_;
  const OnStreams on_streams_;
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable ended_;  // Notified when streams_ is empty.
  bool stopping_ = false;
  uint64_t version_ = 0;  // 0: there is no message yet.
  grpc::ByteBuffer message_;
  uint64_t last_id_ = 0;
  std::map<uint64_t, std::unique_ptr<Stream>> streams_;  // By id; one of them waits for its client.
};

Broadcast::Broadcast(std::unique_ptr<grpc::ServerCompletionQueue> queue, Await await,
                     OnStreams on_streams)
    : streams_(
          std::make_unique<Streams>(std::move(queue), std::move(await), std::move(on_streams))) {}

Broadcast::~Broadcast() = default;

void Broadcast::Send(const std::string& message) { streams_->Send(message); }
void Broadcast::EndStreams() { streams_->EndStreams(); }
void Broadcast::CancelStreams() { streams_->CancelStreams(); }
void Broadcast::Shutdown(grpc::Server* server, const Deadline& deadline) {
  streams_->Shutdown(server, deadline);
}

}  // namespace gpushm::plugin::kubelet
