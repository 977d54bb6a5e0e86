// Helper threads for as long as one transfer lasts: reading a file out of the page cache is a copy,
// and one core copies more slowly than PCIe takes.
//
// They exist only where a caller asked for them, take no signals, call nothing but what Run is
// given, and have ended when the destructor returns.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

namespace gpushm {

class Crew {
 public:
  // Fewer helpers than asked for, or none, if the system gives no more.
  explicit Crew(uint32_t helpers);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Calls `work(0)` to `work(parts - 1)`, each once, on the helpers and on the calling thread.
  // Returns when all have ended.
  void Run(size_t parts, const std::function<void(size_t part)>& work);

 private:
  static void* Main(void* crew);
  void Help();
  // Takes parts until none is left. Called and left with `lock` held.
  void TakeParts(std::unique_lock<std::mutex>& lock);

  std::vector<pthread_t> helpers_;
  std::mutex mutex_;
  std::condition_variable work_came_;
  std::condition_variable work_ended_;
  // All under mutex_.
  const std::function<void(size_t)>* work_ = nullptr;
  size_t parts_ = 0;
  size_t next_ = 0;
  size_t ended_ = 0;
  bool leave_ = false;
};

// Helpers that make sense on this machine, for programs that may have threads: one for each core
// beside the caller's, and no more than PCIe 5 keeps busy.
uint32_t UsefulHelpers();

}  // namespace gpushm
