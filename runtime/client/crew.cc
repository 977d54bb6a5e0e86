#include "runtime/client/crew.h"

#include <sched.h>
#include <signal.h>

#include <algorithm>

namespace gpushm {
namespace {

// On the machines of docs/transfers.md a core copies 6 GiB/s out of the page cache and 4 out of a
// tmpfs, and the link takes 51.
constexpr int kMostHelpers = 15;

}  // namespace

Crew::Crew(uint32_t helpers) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  // A helper inherits the mask: signals stay with the application's own threads.
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (uint32_t i = 0; i < helpers; ++i) {
    pthread_t helper{};
    if (pthread_create(&helper, nullptr, &Crew::Main, this) != 0) break;
    helpers_.push_back(helper);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Crew::~Crew() {
  {
    const std::lock_guard lock(mutex_);
    leave_ = true;
  }
  work_came_.notify_all();
  for (const pthread_t helper : helpers_) pthread_join(helper, nullptr);
}

void Crew::Start(Batch* batch) {
  if (batch->parts == 0) return;
  {
    const std::lock_guard lock(mutex_);
    with_parts_.push_back(batch);
  }
  work_came_.notify_all();
}

void Crew::Finish(Batch* batch) {
  std::unique_lock lock(mutex_);
  while (batch->ended < batch->parts) {
    if (with_parts_.empty()) {
      work_ended_.wait(lock);
    } else {
      TakePart(lock);
    }
  }
}

void* Crew::Main(void* crew) {
  static_cast<Crew*>(crew)->Help();
  return nullptr;
}

void Crew::Help() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_came_.wait(lock, [this] { return leave_ || !with_parts_.empty(); });
    if (leave_) return;
    TakePart(lock);
  }
}

void Crew::TakePart(std::unique_lock<std::mutex>& lock) {
  Batch& batch = *with_parts_.front();
  const size_t part = batch.next++;
  if (batch.next == batch.parts) with_parts_.pop_front();
  lock.unlock();
  batch.work(part);
  lock.lock();
  if (++batch.ended == batch.parts) work_ended_.notify_all();
}

uint32_t UsefulHelpers() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return 0;
  return static_cast<uint32_t>(std::clamp(CPU_COUNT(&cores) - 1, 0, kMostHelpers));
}

}  // namespace gpushm
