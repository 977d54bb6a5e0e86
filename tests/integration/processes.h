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
//   lease                         VALUE: number of its lease
//   wait NAME GENERATION          VALUE: generation
//   context                       makes a CUDA context; write, read and offer do so too
//   write WORD | read             VALUE: first 32-bit word of the latest attachment
//   load NAME PATH | save NAME PATH | delete NAME
//   offer NAME BYTES WORD KIND    own memory, its first word set; KIND: vmm (cuMemCreate with a
//                                 descriptor), malloc (cuMemAlloc), private (cuMemCreate without),
//                                 copy (the same, and a copy is allowed); VALUE: transport, or 100
//                                 if the peers see a copy
//   holders NAME                  VALUE: how many
//   signal ..., barrier ..., ring ...   see signal_commands.h, barrier_commands.h, ring_commands.h
//   cut                           shuts the connection to the broker down, under the library's feet
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "platform/base/clock.h"
#include "platform/base/unique_fd.h"
#include "runtime/include/gpushm/gpushm.h"
#include "tests/demo/isolated.h"

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
  void Wait();  // Until it ends by itself.
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

class Broker {
 public:
  // Serves `folder`. `arguments` of gpushm-broker beyond folder and pool.
  Broker(const std::string& folder, const std::string& pool,
         const std::vector<std::string>& arguments = {});
  // Dies as by SIGKILL, and comes back.
  void Kill() { process_.Kill(); }
  void Wait() { process_.Wait(); }  // Until it ends by itself.
  void Start();
  // Ends in the middle of its work, see `arguments`, and comes back as Start() has it, as if by a
  // kubelet. Returns when it listens for the first time, or again.
  void StartToDie(const std::vector<std::string>& arguments);
  // Kills it, should it live yet. Returns when it has come back.
  void WaitForSuccessor();
  ~Broker();
  Broker(const Broker&) = delete;
  Broker& operator=(const Broker&) = delete;
  pid_t pid() const { return process_.pid(); }

 private:
  std::vector<std::string> command_;
  std::string socket_;
  Process process_;
  // What it starts dies with this thread (PR_SET_PDEATHSIG), so the thread stays.
  std::thread kubelet_;
  enum class Stage { kDoomed, kEnded, kBack, kDone };
  std::atomic<Stage> stage_{Stage::kDone};
  pid_t doomed_ = -1;
  void EndKubelet();
};

// Runs gpushm-broker until it ends by itself; what it logged.
std::string LogOfBroker(const std::string& folder, const std::vector<std::string>& arguments);

struct Answer {
  int status = -1;
  int64_t value = 0;
};

// Whether a status says that the other end closed it, or died.
inline bool HasEnded(int status) { return status == GPUSHM_ENDED || status == GPUSHM_PEER_DIED; }

class Worker {
 public:
  // Of a hostIPC pod: `folder` is what stands for /dev/shm, and `pod_uid` names the pod.
  explicit Worker(const std::string& folder, const std::string& pod_uid = "");
  Answer Do(const std::string& command);
  bool Begin(const std::string& command);    // Its answer is not waited for.
  Answer Await(const std::string& command);  // The answer to what was begun.
  void Kill() { process_.Kill(); }

 private:
  UniqueFd channel_;
  Process process_;
};

// A worker that is PID 1 of namespaces of its own, as a container's entrypoint is.
class IsolatedWorker {
 public:
  explicit IsolatedWorker(const std::string& folder);
  // False, and the test skipped, where the system forbids namespaces.
  bool started() const { return process_.has_value(); }
  Answer Do(const std::string& command);
  void Kill() { process_->Kill(); }

 private:
  std::optional<demo::Isolated> process_;
};

// What a process runs that stands for the node's plugin, with one allocation on `gpu`. How many
// generations and leases it keeps is in links/kept.
int PluginMain(const std::string& links, const std::string& gpu);
// What a process that was started as a worker runs.
int WorkerMain(const std::string& folder, const std::string& pod_uid);
// The same with lines on standard input and output.
int IsolatedWorkerMain(const std::string& folder);

}  // namespace gpushm::integration
