// A context's hardware queues: CUDA_DEVICE_MAX_CONNECTIONS of them (8 unless set, 2 under MPS),
// each a FIFO with one thread. Streams are spread over them. A pending wait at the head of a queue
// blocks everything behind it, whatever its stream. This was measured on the real driver: 40
// waiting streams block the 41st, and with one connection a wait blocks even a synchronous copy.
//
// Threads: thread-safe. Worker threads start with a queue's first operation, block all signals, and
// keep the Engine alive until Stop().
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "simulator/exported_api.h"

namespace gpushm::sim {

class Engine;

using Work = std::function<CUresult(Engine&)>;

struct Operation {
  Work run;
  std::vector<std::shared_ptr<Operation>> after;  // In other queues; all were submitted earlier.
  std::atomic<bool> done = false;                 // Release by the worker, acquire by observers.
};

// A stream, blocking or not. Its Engine's mutex guards the members that are not const.
struct Stream {
  std::shared_ptr<Engine> engine;
  size_t connection = 0;
  bool non_blocking = false;
  bool null_stream = false;
  std::shared_ptr<Operation> last;
  std::atomic<bool> capturing = false;
  std::vector<Work> captured;
};

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  Engine(int device, size_t connections) : device_(device), queues_(connections) {}

  int device() const { return device_; }
  // The legacy default stream: uses the first connection.
  void MakeNullStream();
  const std::shared_ptr<Stream>& null_stream() const { return null_stream_; }
  std::shared_ptr<Stream> AddStream(bool non_blocking);

  // Queues work on a stream, after `after` and after what CUDA's rules order before it.
  std::shared_ptr<Operation> Submit(Stream& stream, Work work,
                                    std::vector<std::shared_ptr<Operation>> after = {});
  // Waits for an operation (null: none); returns the context's error, if any.
  CUresult Wait(const std::shared_ptr<Operation>& operation);
  CUresult WaitForAll();

  std::shared_ptr<Operation> Last(const Stream& stream) const;
  // The first fault, which every later call of this context returns.
  CUresult error() const { return error_.load(std::memory_order_acquire); }
  void Fail(CUresult error);
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }
  // Drops everything queued, because the context ends.
  void Stop();

  // While it lives, a stream waits for a value in memory.
  class MemoryWait {
   public:
    explicit MemoryWait(Engine& engine) : engine_(engine) { ++engine_.memory_waits_; }
    MemoryWait(const MemoryWait&) = delete;
    MemoryWait& operator=(const MemoryWait&) = delete;
    ~MemoryWait() { --engine_.memory_waits_; }

   private:
    Engine& engine_;
  };
  // An H200 makes 34 more streams while one waits for memory; the next one is made only when none
  // waits. False: the engine stops.
  bool AwaitRoomForStream() const;

  // Calls `ready` until it returns true or the engine stops: spins briefly, then sleeps up to 50
  // us.
  bool Poll(const std::function<bool()>& ready) const;

 private:
  struct Queue {
    std::deque<std::shared_ptr<Operation>> waiting;
    bool running = false;
  };

  void WorkOff(size_t connection);
  static bool Ready(const Operation& operation);

  const int device_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Queue> queues_;
  std::vector<std::weak_ptr<Stream>> streams_;
  std::shared_ptr<Stream> null_stream_;
  size_t next_connection_ = 1;
  std::atomic<int> memory_waits_ = 0;
  std::atomic<CUresult> error_ = CUDA_SUCCESS;
  std::atomic<bool> stopped_ = false;
};

}  // namespace gpushm::sim
