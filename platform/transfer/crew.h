// Helper threads for as long as one transfer lasts: reading a file out of the page cache is a copy,
// and one core copies more slowly than PCIe takes.
//
// They take no signals, call nothing but what a batch has, and have ended when the destructor
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
  // Work in parts, each done once, in any order and at once. It stays where it is until Finish has
  // returned or the crew has gone.
  struct Batch {
    std::function<void(size_t part)> work;
    size_t parts = 0;
    // The crew's.
    size_t next = 0;
    size_t ended = 0;
  };

  // Fewer helpers than asked for, or none, if the system gives no more.
  explicit Crew(uint32_t helpers);
  // Parts that nobody has begun are left undone.
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  size_t helpers() const { return helpers_.size(); }

  // Helpers take its parts from now on, after those of batches that were started before.
  void Start(Batch* batch);
  // Takes parts as a helper does, until all of `batch` have ended.
  void Finish(Batch* batch);

 private:
  static void* Main(void* crew);
  void Help();
  // Takes a part of the oldest batch that has one. Called and left with `lock` held.
  void TakePart(std::unique_lock<std::mutex>& lock);

  std::vector<pthread_t> helpers_;
  std::mutex mutex_;
  std::condition_variable work_came_;
  std::condition_variable work_ended_;
  // Both under mutex_, as are batches from Start on.
  std::deque<Batch*> with_parts_;
  bool leave_ = false;
};

// Helpers that make sense here: one for each processor beside the caller's, eight at most.
uint32_t UsefulHelpers();
// The same of a machine with so many processors, in a container with this cpu.max (cgroup v2;
// whatever cannot be read is no limit).
uint32_t HelpersFor(int processors, const std::string& cpu_max);

}  // namespace gpushm
