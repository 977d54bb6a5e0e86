// The processes of an integration test: a real broker, and workers that use libgpushm as an
// application does, on the driver that GPUSHM_DRIVER names. Each is a process of its own, so each
// can be killed.
//
// A worker takes commands, one on each line, and answers each with "STATUS VALUE". STATUS is the
// gpushm_status as a number:
//   attach NAME r|w TIMEOUT_MS    VALUE: generation
//   create NAME BYTES             VALUE: generation   (replace, create-unpublished,
//   replace NAME BYTES             replace-unpublished likewise)
//   publish | current | detach    of the latest attachment
//   address                       VALUE: its address
//   advance GENERATION STREAM     VALUE: its generation afterwards; STREAM: as of signals, or -1
//   graph capture | graph run     a graph that fetches its first word, captured once; VALUE of run:
//                                 the word
//   lease                         VALUE: number of its lease
//   wait NAME GENERATION          VALUE: generation
//   context                       makes a CUDA context; write, read and offer do so too
//   write WORD | read             VALUE: first 32-bit word of the latest attachment
//   same                          VALUE: the value that all bytes of the latest attachment have, or
//                                 -1 if they differ
//   load-attached PATH            a load into the latest attachment; VALUE: bytes
//   load NAME PATH | save NAME PATH | delete NAME
//   offer NAME BYTES WORD KIND    own memory, its first word set; KIND: vmm (cuMemCreate with a
//                                 descriptor), malloc (cuMemAlloc), private (cuMemCreate without),
//                                 copy (the same, and a copy is allowed); VALUE: transport, or 100
//                                 if the peers see a copy
//   holders NAME                  VALUE: how many
//   offer-state NAME              of the worker's last offer; VALUE: users, or 100 if unused
//   signal ..., barrier ..., ring ...   see signal_commands.h, barrier_commands.h, ring_commands.h
//   waiter ...                    see waiter_commands.h
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "platform/base/clock.h"
#include "platform/base/unique_fd.h"
#include "runtime/include/gpushm/gpushm.h"
#include "tests/demo/isolated.h"

namespace gpushm::integration {

inline constexpr int64_t kPatienceMs = 20'000;

// A program of the project: next to this one, also in an unpacked pack.
std::string ProgramPath(const std::string& name);

// A child process, which the destructor kills if it still runs.
class Process {
 public:
  Process() = default;
  // `channel` becomes descriptor 3 of the child, unless it is -1.
  Process(const std::vector<std::string>& command, int channel);
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process() { Kill(); }
  void Kill();  // Sends SIGKILL and waits.
  void Wait();  // Waits until it ends by itself.
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

// As in a pod, it is no client of MPS, also where its clients are.
class Broker {
 public:
  // Serves `folder`. `arguments`: those of gpushm-broker other than folder and pool.
  Broker(const std::string& folder, const std::string& pool,
         const std::vector<std::string>& arguments = {});
  // Kill ends it with SIGKILL; Start starts it again.
  void Kill() { process_.Kill(); }
  void Wait() { process_.Wait(); }  // Until it has ended by itself.
  void Start();
  Broker(const Broker&) = delete;
  Broker& operator=(const Broker&) = delete;
  pid_t pid() const { return process_.pid(); }

 private:
  std::vector<std::string> command_;
  std::string socket_;
  Process process_;
};

// Runs gpushm-broker until it ends by itself. Returns its log.
std::string LogOfBroker(const std::string& folder, const std::vector<std::string>& arguments);

// A struct of the C API, initialised.
template <typename T>
T Sized() {
  T value;
  GPUSHM_INIT(&value);
  return value;
}

// A client of this process, which the caller closes.
gpushm_client* OpenClient(const std::string& folder);

struct Answer {
  int status = -1;
  int64_t value = 0;
};

// What a command answers; an error's text goes to stderr.
inline Answer Told(int status, int64_t value = 0) {
  if (status != GPUSHM_OK) std::fprintf(stderr, "worker: %s\n", gpushm_last_error()->text);
  return {status, value};
}

// Whether a status means that the other end closed the object, or died.
inline bool HasEnded(int status) { return status == GPUSHM_ENDED || status == GPUSHM_PEER_DIED; }

class Worker {
 public:
  // For a hostIPC pod: `folder` stands in for /dev/shm, and `pod_uid` names the pod.
  explicit Worker(const std::string& folder, const std::string& pod_uid = "");
  Answer Do(const std::string& command);
  bool Begin(const std::string& command);    // Does not wait for the answer.
  Answer Await(const std::string& command);  // The answer to the command that Begin sent.
  void Kill() { process_.Kill(); }

 private:
  UniqueFd channel_;
  Process process_;
};

// A worker that is PID 1 of its own namespaces, like a container's entrypoint.
class IsolatedWorker {
 public:
  explicit IsolatedWorker(const std::string& folder);
  // False if the system forbids namespaces; the test is then skipped.
  bool started() const { return process_.has_value(); }
  Answer Do(const std::string& command);
  void Kill() { process_->Kill(); }

 private:
  std::optional<demo::Isolated> process_;
};

// The main function of a process that was started as a worker: the folder, the pod's UID.
int WorkerMain(const std::vector<std::string>& words);
// The same, with lines on standard input and output: the folder.
int IsolatedWorkerMain(const std::vector<std::string>& words);

}  // namespace gpushm::integration
