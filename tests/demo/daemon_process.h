// Daemons of the demo: programs beside this one, as child processes, their logs in files.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace gpushm::demo {

// Where this program and its daemons are.
std::string OwnFolder();
// Where the daemons are: bin/ beside the folder of this program, which may be bin/ itself.
std::string ProgramFolder();

class DaemonProcess {
 public:
  // Runs ProgramFolder()/`program`; what it says is appended to `log`. It ends with this process.
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
