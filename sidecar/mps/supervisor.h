// Keeps NVIDIA's MPS control daemon running for the containers of a pod, and says how it is.
//
// A process that initialises CUDA while there is no daemon runs without MPS, and nobody tells it.
// So a daemon that ends, or does not answer, is replaced at once. docs/design/mps.md has what was
// measured.
//
// Threads: one, the loop's.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "contract/status/mps_state.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "platform/daemon/event_loop.h"

namespace gpushm::mps {

// The daemon's program, which the device plugin puts into the container.
inline constexpr char kControlProgram[] = "nvidia-cuda-mps-control";

// Whether somebody accepts connections at the daemon's socket in this folder.
bool DaemonListens(const std::string& folder);

struct Options {
  // CUDA_MPS_PIPE_DIRECTORY. Clients need only read it.
  std::string folder = "/run/gpushm-mps";
  std::string program = kControlProgram;  // Looked up in PATH.
  // The uid whose server is started before the first client comes; empty: none.
  std::optional<uid_t> server_uid;
};

class Supervisor {
 public:
  Supervisor(EventLoop* loop, Options options);

  // Starts the daemon. Fails with kNotFound if there is no such program.
  Result<void> Start();
  // A child has ended (SIGCHLD).
  void OnChildren();
  // Ends the daemon in order, and calls `ended` then, or after two seconds.
  void Stop(std::function<void()> ended);

 private:
  struct Question;
  using Answered = std::function<void(const Result<std::string>& answer)>;

  Result<void> StartDaemon();
  void AwaitDaemon(uint64_t start, int64_t end_ns);
  void OnDaemonEnded(int status);
  void Restart();
  void KillDaemon();
  void Ask(const std::string& command, Answered answered);
  void EndQuestion(const Result<std::string>& answer);
  void Look();
  void LookAtServer(pid_t server);
  void NoteServer(pid_t server);
  void NoAnswer(const Status& why);
  void LookAgain();
  void WriteState(std::string_view state);

  EventLoop* const loop_;
  const Options options_;
  UniqueFd lock_;     // Of the folder, for the life of this object.
  pid_t daemon_ = 0;  // 0: none.
  uint64_t starts_ = 0;
  int64_t started_ns_ = 0;
  int64_t restart_ms_ = 0;
  bool ready_ = false;
  bool stopping_ = false;
  std::function<void()> ended_;

  status::MpsState shown_;
  int unanswered_ = 0;
  std::shared_ptr<Question> question_;
};

}  // namespace gpushm::mps
