// For tests: a broker as the keeper sees one. It is in the test's own process, or with Fork in a
// separate one that can be killed.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "contract/protocol/channel.h"
#include "contract/protocol/link.h"
#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "plugin/keeper/testing/model.h"

namespace gpushm::plugin::keeper::testing {

// Generous: anything that takes this long hangs.
inline constexpr int64_t kSoonMs = 20'000;

// Repeats the check until it holds; false after kSoonMs.
bool Eventually(const std::function<bool()>& holds);

// A folder of mode 0700 that is removed with the object.
class LinksFolder {
 public:
  LinksFolder();
  ~LinksFolder();
  LinksFolder(const LinksFolder&) = delete;
  LinksFolder& operator=(const LinksFolder&) = delete;
  const std::string& path() const { return path_; }
  // Creates the folder of an allocation, as the plugin does.
  void Add(const std::string& name) const;
  std::string Socket(const std::string& name) const;

 private:
  std::string path_;
};

class FakeBroker {
 public:
  // Connects; waits if nobody listens yet.
  explicit FakeBroker(const std::string& socket_path);
  explicit FakeBroker(UniqueFd socket) : socket_(std::move(socket)) {}

  bool connected() const { return socket_.valid(); }
  int socket() const { return socket_.get(); }
  void Hangup() { socket_.Reset(); }

  template <typename T>
  Result<void> Say(protocol::LinkKind kind, const T& body, int descriptor = -1) {
    protocol::Buffer bytes;
    const size_t size = protocol::EncodeLink(kind, body, &bytes);
    return protocol::Send(socket_.get(), {bytes.data(), size},
                          {&descriptor, descriptor >= 0 ? 1u : 0u}, Deadline::AfterMs(kSoonMs));
  }
  Result<void> Say(const Body& body, int descriptor = -1);

  // Greets, and receives the Welcome.
  Result<protocol::LinkWelcome> Greet(bool want_kept, uint64_t epoch = 1);
  // Sends only Hello.
  Result<void> Hello(bool want_kept, uint64_t epoch = 1);
  // Receives what is kept until End, in the form of Model::Dump(). Closes the descriptors.
  Result<std::vector<std::string>> TakeKept();
  // Makes and states a registry.
  Result<void> Registry(uint64_t epoch = 1);
  // Makes and states counters, all 0.
  Result<void> Counters(const std::vector<std::string>& containers = {"app"});
  Result<void> End() { return Say(protocol::LinkKind::kEnd, protocol::LinkEnd{}); }

  Result<protocol::Message> Next(int64_t wait_ms = kSoonMs);
  template <typename T>
  Result<T> Expect(protocol::LinkKind kind) {
    Result<protocol::Message> message = Next();
    if (!message) return std::unexpected(message.error());
    const auto header = protocol::ParseLinkHeader(message->span());
    if (!header) return std::unexpected(header.error());
    if (header->kind != static_cast<uint16_t>(kind)) {
      return Fail(Code::kInternal, Concat("message ", header->kind));
    }
    return protocol::ParseLink<T>(message->span());
  }
  // Waits until the keeper closes the connection; false if it does not.
  bool WaitForEnd();

 private:
  UniqueFd socket_;
};

// A process that runs `body` and then kills itself with SIGKILL, unless it was killed before.
class Process {
 public:
  explicit Process(const std::function<void()>& body);
  ~Process() { Kill(); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  pid_t pid() const { return pid_; }
  // Kills and reaps it.
  void Kill();
  // Reaps it once it has ended by itself.
  bool WaitForEnd();
  // The status that WaitForEnd reaped: 0 if it exited with 0.
  int status() const { return status_; }

 private:
  bool Reap(bool wait);
  pid_t pid_ = -1;
  int status_ = -1;
};

// For a child that has nothing more to do: waits until it is killed.
[[noreturn]] void WaitToBeKilled();

// Records the calls of on_link, and waits for them.
class LinkEvents {
 public:
  void Note(const std::string& name, bool open);
  // Waits until the link was reported (not) open `count` times.
  bool Wait(const std::string& name, bool open, int count = 1);
  int Count(const std::string& name, bool open);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<std::string, bool>, int> counts_;
};

}  // namespace gpushm::plugin::keeper::testing
