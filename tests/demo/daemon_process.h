// Daemons of the demo: programs next to this one, run as child processes with log files.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace gpushm::demo {

// The folder of this program.
std::string OwnFolder();
// The folder of the daemons: bin/ next to this program's folder, which may itself be bin/.
std::string ProgramFolder();

class DaemonProcess {
 public:
  // Runs ProgramFolder()/`program` and appends its output to `log`. It ends with this process.
  DaemonProcess(const std::string& program, std::vector<std::string> arguments,
                const std::string& log);
  // Sends SIGTERM, then SIGKILL after five seconds.
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  pid_t pid() const { return pid_; }
  bool Running();
  // Sends SIGKILL and waits for the end.
  void Kill();

 private:
  pid_t pid_;
};

}  // namespace gpushm::demo
