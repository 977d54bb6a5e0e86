// Daemons of the demo: programs beside this one, as child processes, their logs in files.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace gpushm::demo {

// Where this program and its daemons are.
std::string OwnFolder();

class DaemonProcess {
 public:
  // Runs OwnFolder()/`program`; what it says is appended to `log`. It ends with this process.
  DaemonProcess(const std::string& program, std::vector<std::string> arguments,
                const std::string& log);
  // SIGTERM; SIGKILL after five seconds.
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  pid_t pid() const { return pid_; }
  bool Running();
  // SIGKILL, and waits until it is gone.
  void Kill();

 private:
  pid_t pid_;
};

}  // namespace gpushm::demo
