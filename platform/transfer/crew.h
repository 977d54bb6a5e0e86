// Helper threads that exist for one transfer. Reading a file out of the page cache is a copy, and
// one core copies more slowly than PCIe can carry.
//
// They block all signals and run only the work of batches. They have ended when the destructor
// returns.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace gpushm {

class Crew {
 public:
  // Work in parts. Each part runs once, in any order and in parallel. The batch must not move until
  // Finish has returned or the crew is destroyed.
  struct Batch {
    std::function<void(size_t part)> work;
    size_t parts = 0;
    // Used by the crew only.
    size_t next = 0;
    size_t ended = 0;
  };

  // Starts fewer helpers than requested, or none, if the system allows no more.
  explicit Crew(uint32_t helpers);
  // Parts that no thread has begun are dropped.
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  size_t helpers() const { return helpers_.size(); }

  // Helpers take its parts from now on, after those of batches that were started earlier.
  void Start(Batch* batch);
  // Whether all parts of `batch` have ended.
  bool HasEnded(const Batch& batch);
  // Takes parts as a helper does, until all parts of `batch` have ended.
  void Finish(Batch* batch);

 private:
  static void* Main(void* crew);
  void Help();
  // Takes a part of the oldest batch that has one. `lock` is held on entry and on return.
  void TakePart(std::unique_lock<std::mutex>& lock);

  std::vector<pthread_t> helpers_;
  std::mutex mutex_;
  std::condition_variable work_came_;
  std::condition_variable work_ended_;
  // mutex_ guards both, and each batch from Start on.
  std::deque<Batch*> with_parts_;
  bool leave_ = false;
};

// Number of useful helpers here: one for each processor except the caller's, at most eight.
uint32_t UsefulHelpers();
// The same for a machine with `processors` processors, in a container with this cpu.max (cgroup v2;
// text that cannot be read means no limit).
uint32_t HelpersFor(int processors, const std::string& cpu_max);

}  // namespace gpushm
