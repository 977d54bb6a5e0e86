// For tests: the real gpushm-broker as a process of its own, on the simulated driver, in a folder
// of its own. Nothing outlives the object.
//
// Threads: the test's; one more reads the broker's log.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "platform/base/testing.h"
#include "platform/base/unique_fd.h"

namespace gpushm::broker::testing {

// Generous: what takes so long hangs.
inline constexpr int64_t kSoonMs = 20'000;

using gpushm::testing::TempFolder;

// The simulated cards of this test program: all brokers of the program share them.
namespace simulated {
// Replaces faults.yaml; empty: none.
void SetFaults(const std::string& yaml);
// Looks like GPU memory to a broker, without being allocated.
UniqueFd Memory();
// What NVML counts on card 0.
uint64_t UsedBytes();
}  // namespace simulated

struct BrokerSettings {
  std::vector<std::string> arguments;  // Beyond --folder.
  std::string buffers;                 // GPUSHM_BUFFERS
  uid_t uid = 0;                       // Not 0: runs as this user, without privilege ...
  uint64_t descriptors = 0;            // ... and with this limit on descriptors.
  std::string simulated_state =
      {};            // Not empty: the folder of the cards, in place of the program's.
  bool wait = true;  // For it to be ready, or to have ended.
};

// Two containers, a buffer to attach, room to make more.
BrokerSettings TwoContainers();

class BrokerProcess {
 public:
  // Starts it in `folder` and waits until it is ready or has ended.
  BrokerProcess(const std::string& folder, const BrokerSettings& settings);
  // SIGKILLs it, should it still run.
  ~BrokerProcess();
  BrokerProcess(const BrokerProcess&) = delete;
  BrokerProcess& operator=(const BrokerProcess&) = delete;

  bool ready() const { return ready_; }
  pid_t pid() const { return pid_; }
  std::string Socket(const std::string& container) const;

  void Signal(int signal) const;
  // The exit code; -signal if a signal ended it; -1000 if it runs on.
  int WaitForEnd(int64_t wait_ms = kSoonMs);

  // All lines so far, and waiting for one that contains `text`.
  std::string log() const;
  bool WaitForLog(const std::string& text, int64_t wait_ms = kSoonMs) const;
  // Its standard error is full, and nobody reads it; until the other call.
  void StallLog();
  void ReadLogAgain();

  // Open descriptors of the process.
  size_t Descriptors() const;

 private:
  void ReadLog();
  void ReadLogToNow() const;
  void Note(std::string_view text);  // Of the log; empty: its end.

  std::string folder_;
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  UniqueFd log_pipe_;
  std::thread reader_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::string log_;         // Guarded by mutex_.
  bool log_ended_ = false;  // Guarded by mutex_.
  bool stalled_ = false;    // Guarded by mutex_.
  bool parked_ = false;     // Guarded by mutex_: the reader waits for the stall's end.
  bool ready_ = false;
  bool ended_ = false;
  int result_ = 0;
};

// Looks until `holds` does. False: not before the deadline.
bool Eventually(const std::function<bool()>& holds, int64_t wait_ms = kSoonMs);

}  // namespace gpushm::broker::testing
