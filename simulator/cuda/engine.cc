#include "simulator/cuda/engine.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace gpushm::sim {

void Engine::MakeNullStream() {
  null_stream_ = std::make_shared<Stream>();
  null_stream_->engine = shared_from_this();
  null_stream_->null_stream = true;
}

std::shared_ptr<Stream> Engine::AddStream(bool non_blocking) {
  auto stream = std::make_shared<Stream>();
  stream->engine = shared_from_this();
  stream->non_blocking = non_blocking;
  const std::lock_guard lock(mutex_);
  stream->connection = next_connection_++ % queues_.size();
  std::erase_if(streams_, [](const std::weak_ptr<Stream>& known) { return known.expired(); });
  streams_.push_back(stream);
  return stream;
}

bool Engine::AwaitRoomForStream() const {
  constexpr size_t kStreamsBesideWaits = 34;
  return Poll([this] {
    if (memory_waits_ == 0) return true;
    const std::lock_guard lock(mutex_);
    return static_cast<size_t>(std::count_if(streams_.begin(), streams_.end(), [](const auto& s) {
             return !s.expired();
           })) < kStreamsBesideWaits;
  });
}

bool Engine::Ready(const Operation& operation) {
  return std::all_of(operation.after.begin(), operation.after.end(), [](const auto& before) {
    return before->done.load(std::memory_order_acquire);
  });
}

std::shared_ptr<Operation> Engine::Submit(Stream& stream, Work work,
                                          std::vector<std::shared_ptr<Operation>> after) {
  auto operation = std::make_shared<Operation>();
  operation->run = std::move(work);
  const std::lock_guard lock(mutex_);
  // The legacy default stream waits for every blocking stream, and every blocking stream waits for
  // it.
  if (stream.null_stream) {
    for (const std::weak_ptr<Stream>& known : streams_) {
      const std::shared_ptr<Stream> other = known.lock();
      if (other && !other->non_blocking && other->last) after.push_back(other->last);
    }
  } else if (!stream.non_blocking && null_stream_->last) {
    after.push_back(null_stream_->last);
  }
  std::erase_if(after, [](const auto& before) {
    return before == nullptr || before->done.load(std::memory_order_acquire);
  });
  operation->after = std::move(after);
  stream.last = operation;
  if (stopped()) {
    operation->done.store(true, std::memory_order_release);
    return operation;
  }
  Queue& queue = queues_[stream.connection];
  queue.waiting.push_back(operation);
  if (!queue.running) {
    queue.running = true;
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([self = shared_from_this(), connection = stream.connection] {
      self->WorkOff(connection);
    }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  changed_.notify_all();
  return operation;
}

void Engine::WorkOff(size_t connection) {
  std::unique_lock lock(mutex_);
  Queue& queue = queues_[connection];
  while (!stopped()) {
    if (queue.waiting.empty() || !Ready(*queue.waiting.front())) {
      changed_.wait(lock);
      continue;
    }
    const std::shared_ptr<Operation> operation = queue.waiting.front();
    lock.unlock();  // It stays at the front, so that WaitForAll sees it.
    if (error() == CUDA_SUCCESS) {
      const CUresult result = operation->run(*this);
      if (result != CUDA_SUCCESS) Fail(result);
    }
    operation->run = nullptr;  // Releases the memory that it held.
    lock.lock();
    queue.waiting.pop_front();
    operation->after.clear();
    operation->done.store(true, std::memory_order_release);
    changed_.notify_all();
  }
  for (const std::shared_ptr<Operation>& operation : queue.waiting) {
    operation->done.store(true, std::memory_order_release);
  }
  queue.waiting.clear();
  queue.running = false;
  changed_.notify_all();
}

CUresult Engine::Wait(const std::shared_ptr<Operation>& operation) {
  if (operation == nullptr) return error();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return operation->done.load(std::memory_order_acquire); });
  return error();
}

CUresult Engine::WaitForAll() {
  std::vector<std::shared_ptr<Operation>> pending;
  {
    const std::lock_guard lock(mutex_);
    for (const Queue& queue : queues_) {
      if (!queue.waiting.empty()) pending.push_back(queue.waiting.back());
    }
  }
  for (const auto& operation : pending) Wait(operation);
  return error();
}

std::shared_ptr<Operation> Engine::Last(const Stream& stream) const {
  const std::lock_guard lock(mutex_);
  return stream.last;
}

void Engine::Fail(CUresult error) {
  CUresult none = CUDA_SUCCESS;
  error_.compare_exchange_strong(none, error, std::memory_order_acq_rel);
}

void Engine::Stop() {
  std::unique_lock lock(mutex_);
  stopped_.store(true, std::memory_order_release);
  changed_.notify_all();
  changed_.wait(lock, [&] {
    return std::none_of(queues_.begin(), queues_.end(), [](const Queue& q) { return q.running; });
  });
  null_stream_->last = nullptr;
  null_stream_->engine = nullptr;  // Breaks the cycle.
}

bool Engine::Poll(const std::function<bool()>& ready) const {
  constexpr int kSpins = 200;
  constexpr auto kLongestSleep = std::chrono::microseconds(50);
  auto pause = std::chrono::microseconds(1);
  for (int spins = 0; !ready(); ++spins) {
    if (stopped()) return false;
    if (spins < kSpins) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestSleep);
  }
  return true;
}

}  // namespace gpushm::sim
