// Processes of the benchmarks: the broker, and children that run this program again in another
// role.
//
// All of them die with the process that started them.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "platform/base/testing/must.h"
#include "platform/base/unique_fd.h"

namespace gpushm::bench {

// A Failure ends the row, or the role of a child, in which it is thrown.
using gpushm::testing::Failure;
using gpushm::testing::Must;

struct Heard {
  std::string text;
  UniqueFd descriptor;  // Invalid if none came.
};

// Short texts, each with at most one descriptor, between a parent and its child.
class Channel {
 public:
  explicit Channel(UniqueFd socket) : socket_(std::move(socket)) {}
  void Say(std::string_view text, int descriptor = -1);
  Result<Heard> Hear(const Deadline& deadline);  // An error once the other end is closed.
  int socket() const { return socket_.get(); }

 private:
  UniqueFd socket_;
};

// The two ends of a socket for a Channel.
std::pair<UniqueFd, UniqueFd> SocketPair();

// Memory that processes share. A mapping ends with its last owner.
UniqueFd MakeShared(uint64_t size_bytes);
std::shared_ptr<void> MapShared(int descriptor, uint64_t size_bytes);

// A child process, killed and reaped at the end.
class Process {
 public:
  // Runs `program` with `arguments`. `kept` stays open in it under the same number. Its output goes
  // to `log`, or to this process's output if `log` is empty.
  static Process Start(const std::filesystem::path& program,
                       const std::vector<std::string>& arguments, int kept,
                       const std::filesystem::path& log);

  pid_t pid() const { return pid_; }
  // Readable once the process has ended.
  int pidfd() const { return pidfd_.get(); }
  void Kill();
  // Sends SIGTERM, and SIGKILL if the process does not end within five seconds.
  void Stop();
  bool Ended() const;

  Process(Process&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), pidfd_(std::move(other.pidfd_)) {}
  Process& operator=(Process&&) = delete;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process();

 private:
  Process(pid_t pid, UniqueFd pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}
  void Reap();

  pid_t pid_;
  UniqueFd pidfd_;
};

// This program again, in a role (see harness.h). A started role is not ready yet; roles report
// that.
class Child {
 public:
  static Child Start(const std::string& role, const std::vector<std::string>& arguments);
  // Waits for a text, which must be `expected`.
  void Expect(std::string_view expected, const Deadline& deadline);

  Channel& channel() { return channel_; }
  Process& process() { return process_; }

 private:
  Child(Process process, Channel channel)
      : process_(std::move(process)), channel_(std::move(channel)) {}
  Process process_;
  Channel channel_;
};

// The real broker, with buffers declared in a file and its socket in a folder of its own.
class Broker {
 public:
  struct Options {
    // Name and size of each declared buffer; sizes are whole MiB.
    std::vector<std::pair<std::string, uint64_t>> buffers;
    uint64_t extra_bytes = 0;   // Part of the pool, for buffers made at run time.
    std::string link = "none";  // The folder of a plugin's socket.
  };
  // Does not wait for the broker; Connection::To does.
  static Broker Start(const Options& options);
  Broker(Broker&&) = default;
  ~Broker();

  const std::filesystem::path& folder() const { return folder_; }
  pid_t pid() const { return process_.pid(); }
  bool Ended() const { return process_.Ended(); }
  // The end of its log, for messages.
  std::string LogTail() const;

 private:
  Broker(Process process, std::filesystem::path folder)
      : process_(std::move(process)), folder_(std::move(folder)) {}
  Process process_;
  std::filesystem::path folder_;
};

// From /proc/<pid>/status.
struct Memory {
  uint64_t rss_bytes = 0;   // VmRSS.
  uint64_t anon_bytes = 0;  // RssAnon.
};
Memory MemoryOf(pid_t pid);

// The folder of this program.
std::filesystem::path OwnFolder();

}  // namespace gpushm::bench
