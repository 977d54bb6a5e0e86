// For tests: the real gpushm-broker as a separate process, on the simulated driver, in its own
// folder. Nothing survives the object.
//
// Threads: the test's, and one that reads the broker's log.
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

// Generous; anything that takes longer hangs.
inline constexpr int64_t kSoonMs = 20'000;

using gpushm::testing::TempFolder;

// The simulated GPUs of this test program, which all its brokers share.
namespace simulated {
// Replaces faults.yaml; empty for no faults.
void SetFaults(const std::string& yaml);
// Memory that a broker takes for GPU memory, without being allocated.
UniqueFd Memory();
// What NVML counts on GPU 0.
uint64_t UsedBytes();
}  // namespace simulated

struct BrokerSettings {
  std::vector<std::string> arguments;  // In addition to --folder.
  std::string buffers;                 // GPUSHM_BUFFERS
  uid_t uid = 0;                       // If not 0: runs as this user, without privileges ...
  uint64_t descriptors = 0;            // ... and with this limit of descriptors.
  std::string simulated_state =
      {};            // If not empty: the folder of the GPUs, instead of the program's.
  bool wait = true;  // Wait until it is ready, or has ended.
};

// Two containers, a buffer to attach, and memory for more buffers.
BrokerSettings TwoContainers();

class BrokerProcess {
 public:
  // Starts it in `folder` and waits until it is ready or has ended.
  BrokerProcess(const std::string& folder, const BrokerSettings& settings);
  // Kills it with SIGKILL if it still runs.
  ~BrokerProcess();
  BrokerProcess(const BrokerProcess&) = delete;
  BrokerProcess& operator=(const BrokerProcess&) = delete;

  bool ready() const { return ready_; }
  pid_t pid() const { return pid_; }
  std::string Socket(const std::string& container) const;

  void Signal(int signal) const;
  // The exit code, -signal if a signal ended it, or -1000 if it still runs.
  int WaitForEnd(int64_t wait_ms = kSoonMs);

  // All lines so far. WaitForLog waits for a line that contains `text`.
  std::string log() const;
  bool WaitForLog(const std::string& text, int64_t wait_ms = kSoonMs) const;
  // Fills its standard error, which nobody reads until the other call.
  void StallLog();
  void ReadLogAgain();

  // Open descriptors of the process.
  size_t Descriptors() const;

 private:
  void ReadLog();
  void ReadLogToNow() const;
  void Note(std::string_view text);  // A part of the log; empty at its end.

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

// Checks until `holds` returns true. Returns false at the deadline.
bool Eventually(const std::function<bool()>& holds, int64_t wait_ms = kSoonMs);

}  // namespace gpushm::broker::testing
