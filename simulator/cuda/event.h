// The shared half of an interprocess event: a file in /dev/shm. Its name contains the exporter's
// uid and PID, as with the real driver, so that it has the same limits (one /dev/shm, one uid).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "simulator/exported_api.h"

namespace gpushm::sim {

struct SharedEvent {
  struct Words {
    std::atomic<uint64_t> recorded;   // Records submitted.
    std::atomic<uint64_t> completed;  // The last one that its stream reached.
  };
  Words* words = nullptr;
  std::string owned_path;  // Not empty: this process made the file and removes it.
  uint32_t number = 0;
  int fd = -1;  // Holds the flock that shows that the exporter lives.

  SharedEvent() = default;
  SharedEvent(const SharedEvent&) = delete;
  SharedEvent& operator=(const SharedEvent&) = delete;
  ~SharedEvent();

  static std::shared_ptr<SharedEvent> Create();
  // Null: it does not exist, or not for this user.
  static std::shared_ptr<SharedEvent> Open(int32_t pid, uint32_t number);
  bool Done() const {
    return words->completed.load(std::memory_order_acquire) >=
           words->recorded.load(std::memory_order_acquire);
  }
};

}  // namespace gpushm::sim
