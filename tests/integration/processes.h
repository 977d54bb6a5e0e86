// The processes of an integration test: a real broker and workers that use libgpushm as an
// application does, on whatever driver GPUSHM_DRIVER says. Each runs by itself, so each can be
// killed.
//
// A worker takes commands, one a line, and answers each with "STATUS VALUE", STATUS being the
// gpushm_status by number:
//   attach NAME r|w TIMEOUT_MS    VALUE: generation
//   create NAME BYTES             VALUE: generation   (replace, create-unpublished,
//   replace NAME BYTES             replace-unpublished likewise)
//   publish | current | detach    of the latest attachment
//   wait NAME GENERATION          VALUE: generation
//   write WORD | read             VALUE: first 32-bit word of the latest attachment
//   load NAME PATH | save NAME PATH | delete NAME
//   offer NAME BYTES WORD         cuMemCreate memory, its first word set
//   holders NAME                  VALUE: how many
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/unique_fd.h"
#include "runtime/include/gpushm/gpushm.h"

namespace gpushm::integration {

inline constexpr int64_t kPatienceMs = 20'000;

// A child process, killed at the end if it still runs.
class Process {
 public:
  Process() = default;
  // `channel` becomes descriptor 3 of the child, unless it is -1.
  Process(const std::vector<std::string>& command, int channel);
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process() { Kill(); }
  void Kill();  // SIGKILL, and waits.
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

class Broker {
 public:
  // Serves `folder`. `config` is YAML in the annotations' syntax; may be empty.
  Broker(const std::string& folder, const std::string& pool, const std::string& config = "");
  // Dies as by SIGKILL, and comes back.
  void Kill() { process_.Kill(); }
  void Start();
  pid_t pid() const { return process_.pid(); }

 private:
  std::vector<std::string> command_;
  std::string socket_;
  Process process_;
};

struct Answer {
  int status = -1;
  int64_t value = 0;
};

class Worker {
 public:
  explicit Worker(const std::string& folder);
  Answer Do(const std::string& command);
  bool Begin(const std::string& command);  // Its answer is not waited for.
  void Kill() { process_.Kill(); }

 private:
  UniqueFd channel_;
  Process process_;
};

// What a process that was started as a worker runs.
int WorkerMain(const std::string& folder);

}  // namespace gpushm::integration
