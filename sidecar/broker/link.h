// The broker's side of the plugin link (contract/protocol/link.h). At start it gets what an earlier
// broker of this allocation had. From then on it sends every change, so that a successor has it.
//
// Greet() blocks, before the loop runs. Nothing is made without the plugin, because only the plugin
// knows the GPU. After Run() nothing blocks, and nobody waits for the plugin. Statements that do
// not fit into its socket are queued, up to kQueuedChanges. If the queue is full or the link
// breaks, the link is made again, with back-off, and everything is stated again from the current
// state, never from a copy.
//
// Threads: the loop's.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "contract/protocol/channel.h"
#include "contract/protocol/link.h"
#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "platform/daemon/event_loop.h"
#include "platform/daemon/worker.h"
#include "sidecar/broker/ledger.h"
#include "sidecar/broker/statement.h"

namespace gpushm::broker {

class Link {
 public:
  struct Settings {
    std::string folder;
    std::string pod;  // The name of this pod; empty if it is not known.
    uint64_t epoch = 0;
  };
  struct Greeting {
    struct Client {
      protocol::LinkClient stated;
      UniqueFd pidfd;
    };
    struct Gpu {
      std::array<uint8_t, 16> uuid{};
      bool lost = false;
    };
    // The socket for pods that share the claim; invalid if there are none.
    struct Others {
      UniqueFd socket;
      bool may_write = false;
    };
    protocol::LinkWelcome welcome{};
    std::vector<Gpu> gpus;  // By number.
    Others others;
    std::vector<Client> clients;
    Ledger::Kept kept;
  };
  struct Events {
    // The link is up. The full state is then requested statement by statement, in order, as the
    // plugin reads it.
    std::function<void()> on_start;
    std::function<std::optional<Statement>()> next;  // The first statement not yet stated.
    std::function<void(const Statement&)> on_stated;
    // The socket for other pods was made again, for example by another plugin.
    std::function<void(Greeting::Others)> on_others;
    // `gpu` is a number of Greeting::gpus.
    std::function<void(uint32_t gpu, bool lost, std::string_view reason)> on_device;
  };

  static constexpr size_t kQueuedChanges = 4096;

  // `closer` closes copies of GPU memory's descriptors.
  Link(EventLoop* loop, Worker* closer, Settings settings);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Waits until the plugin has sent all that it keeps. Fails with kTimeout, kIncompatible or
  // kCorrupt.
  Result<Greeting> Greet(int64_t wait_ms);

  // From now on the loop owns the link. The caller keeps `registry` and `counters`.
  Result<void> Run(int registry, int counters, Events events);

  // Call it before the client is answered. It does nothing while the link is down, because
  // everything is stated again later.
  void State(const Statement& statement);
  // Whether part of the full state has not been stated yet.
  bool is_stating() const { return stating_; }
  // Whether the plugin has, or has in its socket, all that was to be stated so far.
  bool has_stated_all() const { return phase_ == Phase::kUp && !stating_ && queue_.empty(); }

 private:
  enum class Phase { kDown, kGreeting, kUp };
  struct Queued {
    Statement statement;  // With `own` as its descriptor.
    UniqueFd own;
  };

  Result<Greeting> TryGreet(const Deadline& deadline);
  Result<bool> TakeKept(protocol::Message& message, Greeting* greeting);
  Result<void> SendHello(int socket, bool want_kept, const Deadline& deadline);

  Result<void> Watch();
  void Reconnect();
  void OnSocket(uint32_t events);
  Result<bool> OnMessage();  // False: there was no message.
  Result<void> OnWelcome(const protocol::Message& message);
  Result<void> OnGpu(const protocol::Message& message);
  Result<void> Welcomed();  // Once all of the GPUs are named.
  void StateEverything();
  Result<bool> StateNext();  // False: there is no room.
  Result<bool> TrySend(const Statement& statement);
  void Enqueue(const Statement& statement);
  void Pump();
  void WaitForRoom();
  void Lose(std::string_view reason);
  void ClearQueue();

  EventLoop* loop_;
  Worker* closer_;
  const Settings settings_;
  const std::string path_;
  Events events_;
  int registry_ = -1;
  int counters_ = -1;
  Phase phase_ = Phase::kDown;
  UniqueFd socket_;
  protocol::LinkWelcome welcome_{};       // The first welcome; the binding never changes.
  std::vector<Greeting::Gpu> gpus_;       // That it names.
  protocol::LinkWelcome next_welcome_{};  // During a greeting: what was received so far.
  std::vector<Greeting::Gpu> next_gpus_;
  std::deque<Queued> queue_;
  bool stating_ = false;
  int64_t retry_ms_ = 0;
  std::string said_lost_;    // The last reason logged since the link was up.
  uint64_t timer_ = 0;       // To reconnect, or to time out a greeting.
  uint64_t room_timer_ = 0;  // To send again.
};

}  // namespace gpushm::broker
