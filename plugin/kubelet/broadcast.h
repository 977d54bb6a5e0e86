// The open streams of one method of a gRPC server, each of which gets the newest message.
//
// The streams are asynchronous, on a completion queue with one thread: a stream costs no thread,
// and its end is an event.
//
// Invariants:
//   1. A stream gets the message as soon as it opens, and again after each Send. If it was too slow
//      for several messages, it gets the last one.
//   2. Nothing waits for a stream, except Shutdown until its deadline. A stream that reads nothing
//      keeps one message.
//
// Threads: any. `on_streams` is called from this object's own thread, and must not block.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/async_stream.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "platform/base/clock.h"

namespace gpushm::plugin::kubelet {

class Broadcast {
 public:
  using Writer = grpc::ServerAsyncWriter<grpc::ByteBuffer>;
  // Passes its arguments to Request<METHOD> of a service generated as WithRawMethod_<METHOD>, the
  // queue twice.
  using Await = std::function<void(grpc::ServerContext*, grpc::ByteBuffer* request, Writer*,
                                   grpc::ServerCompletionQueue*, void* tag)>;
  // Called after each change with the number of open streams.
  using OnStreams = std::function<void(size_t open)>;

  // `queue`: from the server's builder. The server has been started.
  Broadcast(std::unique_ptr<grpc::ServerCompletionQueue> queue, Await await,
            OnStreams on_streams = {});
  Broadcast(const Broadcast&) = delete;
  Broadcast& operator=(const Broadcast&) = delete;
  ~Broadcast();  // After Shutdown and the server's destructor.

  // The message from now on, serialised.
  void Send(const std::string& message);
  // Ends the open streams: politely, or by cancelling those that accept nothing. Both result in
  // `on_streams`.
  void EndStreams();
  void CancelStreams();

  // Ends the streams, and then `server`, for whose calls it waits until `deadline`. Nothing is
  // called back afterwards.
  void Shutdown(grpc::Server* server, const Deadline& deadline);

 private:
  class Streams;
  std::unique_ptr<Streams> streams_;
};

}  // namespace gpushm::plugin::kubelet
