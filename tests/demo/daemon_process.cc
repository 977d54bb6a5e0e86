#include "tests/demo/daemon_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <utility>

#include "platform/base/clock.h"
#include "platform/base/status.h"

namespace gpushm::demo {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kEndMs = 5000;
constexpr int kLookEveryMs = 2;

}  // namespace

std::string OwnFolder() { return fs::read_symlink("/proc/self/exe").parent_path(); }
std::string ProgramFolder() { return fs::path(OwnFolder()).parent_path() / "bin"; }

DaemonProcess::DaemonProcess(const std::string& program, std::vector<std::string> arguments,
                             const std::string& log) {
  const std::string path = Concat(ProgramFolder(), "/", program);
  arguments.insert(arguments.begin(), path);
  std::vector<char*> words;
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  std::fflush(nullptr);
  pid_ = fork();
  if (pid_ != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  dup2(out, STDERR_FILENO);
  dup2(out, STDOUT_FILENO);
  execv(path.c_str(), words.data());
  std::perror(path.c_str());
  _exit(127);
}

DaemonProcess::~DaemonProcess() {
  if (!Running()) return;
  kill(pid_, SIGTERM);
  const Deadline deadline = Deadline::AfterMs(kEndMs);
  while (Running()) {
    if (deadline.Passed()) Kill();
    poll(nullptr, 0, kLookEveryMs);
  }
}

bool DaemonProcess::Running() {
  if (pid_ > 0 && waitpid(pid_, nullptr, WNOHANG) == pid_) pid_ = -1;
  return pid_ > 0;
}

void DaemonProcess::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(std::exchange(pid_, -1), nullptr, 0);
}

}  // namespace gpushm::demo
