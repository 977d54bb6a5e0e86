#include "platform/transfer/crew.h"

#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace gpushm {
namespace {

// On the machines of docs/guides/transfers.md a core copies 5 to 7 GiB/s, and the interconnect
// carries 51.
constexpr int kMostHelpers = 8;

}  // namespace

Crew::Crew(uint32_t helpers) {
  helpers_.reserve(helpers);  // Nothing may throw once a thread runs.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  // Helpers inherit the mask, so signals stay with the application's own threads.
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

bool Crew::HasEnded(const Batch& batch) {
  const std::lock_guard lock(mutex_);
  return batch.ended == batch.parts;
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
  cpu_set_t processors;
  CPU_ZERO(&processors);
  if (sched_getaffinity(0, sizeof processors, &processors) != 0) return 0;
  std::string cpu_max;
  std::getline(std::ifstream("/sys/fs/cgroup/cpu.max"), cpu_max);
  return HelpersFor(CPU_COUNT(&processors), cpu_max);
}

uint32_t HelpersFor(int processors, const std::string& cpu_max) {
  // "150000 100000": 150000 of every 100000 microseconds. "max 100000": no limit.
  std::istringstream in(cpu_max);
  int64_t quota = 0;
  int64_t period = 0;
  if (in >> quota >> period && quota > 0 && period > 0) {
    // More threads would use up the quota sooner, and then the whole container is stopped.
    processors = static_cast<int>(
        std::min<int64_t>(processors, quota / period + (quota % period == 0 ? 0 : 1)));
  }
  return static_cast<uint32_t>(std::clamp(processors - 1, 0, kMostHelpers));
}

}  // namespace gpushm
