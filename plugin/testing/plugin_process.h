// The real gpushm-plugin as a process, in a folder of the test, on the simulated driver.
// bin/gpushm-plugin and driver-sim/ come from the test's own build folder.
//
// Threads: one.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "platform/base/testing.h"

namespace gpushm::plugin::testing {

// A node: the folders in which a plugin works, and two simulated GPUs of 16 GiB, or this machine's
// GPUs.
class TestNode {
 public:
  enum class Gpus { kSimulated, kReal };
  explicit TestNode(Gpus gpus = Gpus::kSimulated);

  std::string operator/(const std::string& name) const { return folder_ / name; }
  // Writes the plugin's configuration, plus the lines of `more`.
  std::string WriteConfig(const std::string& more = "") const;
  std::vector<std::string> Specs() const;
  std::vector<std::string> Links() const;
  // The GPU that the runtime would give for this CDI name. Empty: there is no such spec.
  std::string GpuOf(const std::string& cdi_name) const;

  Gpus gpus() const { return gpus_; }

 private:
  const Gpus gpus_;
  gpushm::testing::TempFolder folder_;
};

// Checks every few milliseconds until it is true; false if it never is.
bool WaitUntil(int64_t timeout_ms, const std::function<bool()>& is_so);

inline constexpr char kGpuA[] = "GPU-aaaaaaaa-0000-0000-0000-000000000001";
inline constexpr char kGpuB[] = "GPU-aaaaaaaa-0000-0000-0000-000000000002";

class PluginProcess {
 public:
  // `environment` is added to the test's own, `arguments` to the fixed ones.
  PluginProcess(const TestNode& node, const std::string& config_path,
                const std::map<std::string, std::string>& environment = {},
                const std::vector<std::string>& arguments = {});
  ~PluginProcess();
  PluginProcess(const PluginProcess&) = delete;
  PluginProcess& operator=(const PluginProcess&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  bool Running();
  // False: it still runs at the deadline.
  bool WaitEnd(int64_t timeout_ms);
  // After it has ended: the status from waitpid.
  int status() const { return status_; }
  std::string Log() const;
  int Descriptors() const;
  uint64_t RssBytes() const;

 private:
  pid_t pid_ = -1;
  int status_ = 0;
  std::string log_path_;
};

}  // namespace gpushm::plugin::testing
