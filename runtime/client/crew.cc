#include "runtime/client/crew.h"

#include <sched.h>
#include <signal.h>

#include <algorithm>

namespace gpushm {
namespace {

// Eight cores copy about 60 GB/s together.
constexpr int kMostHelpers = 7;

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

void Crew::Run(size_t parts, const std::function<void(size_t)>& work) {
  std::unique_lock lock(mutex_);
  work_ = &work;
  parts_ = parts;
  next_ = 0;
  ended_ = 0;
  if (parts > 1) work_came_.notify_all();
  TakeParts(lock);
  work_ended_.wait(lock, [this] { return ended_ == parts_; });
  work_ = nullptr;
}

void* Crew::Main(void* crew) {
  static_cast<Crew*>(crew)->Help();
  return nullptr;
}

void Crew::Help() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_came_.wait(lock, [this] { return leave_ || (work_ != nullptr && next_ < parts_); });
    if (leave_) return;
    TakeParts(lock);
  }
}

void Crew::TakeParts(std::unique_lock<std::mutex>& lock) {
  while (work_ != nullptr && next_ < parts_) {
    const size_t part = next_++;
    const std::function<void(size_t)>& work = *work_;
    lock.unlock();
    work(part);
    lock.lock();
    if (++ended_ == parts_) work_ended_.notify_one();
  }
}

uint32_t UsefulHelpers() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return 0;
  return static_cast<uint32_t>(std::clamp(CPU_COUNT(&cores) - 1, 0, kMostHelpers));
}

}  // namespace gpushm
