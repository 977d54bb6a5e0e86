// A process that a test runs one machine instruction at a time. The test can examine shared memory
// at every moment at which the process could be killed, or at which another process could run.
#pragma once

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace gpushm::sync::testing {

// Threads: only the one that made it (the kernel's rule for ptrace).
class Stepped {
 public:
  // A child of fork() that stops before `part`; the result of `part` is the child's exit status.
  explicit Stepped(const std::function<int()>& part) : child_(fork()) {
    if (child_ == 0) {
      if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(kNotTraced);
      kill(getpid(), SIGSTOP);
      _exit(part());
    }
    Await();
  }
  Stepped(const Stepped&) = delete;
  Stepped& operator=(const Stepped&) = delete;
  ~Stepped() { Kill(); }

  // Runs one instruction. False: the process has ended.
  bool Step() {
    if (!ended_) Resume(PTRACE_SINGLESTEP);
    return !ended_;
  }
  // Runs to the end. The result of its part; negative: a signal ended it.
  int Finish() {
    while (!ended_) Resume(PTRACE_CONT);
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -WTERMSIG(status_);
  }
  void Kill() {
    if (!ended_) kill(child_, SIGKILL);
    while (!ended_) Await();
  }

  static constexpr int kNotTraced = 99;

 private:
  void Resume(__ptrace_request how) {
    ptrace(how, child_, nullptr, nullptr);
    Await();
  }
  void Await() {
    ended_ = waitpid(child_, &status_, 0) != child_ || WIFEXITED(status_) || WIFSIGNALED(status_);
  }

  const pid_t child_;
  int status_ = 0;
  bool ended_ = false;
};

}  // namespace gpushm::sync::testing
