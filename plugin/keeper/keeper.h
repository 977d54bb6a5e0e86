// The plugin's side of all links: the sockets that brokers connect to, and what is kept of each, so
// that a broker that was killed finds its buffers again (docs/design/plugin.md,
// contract/protocol/link.h).
//
// One thread of its own serves all links; one broker cannot hold up another (link_server.h). What
// is kept is in memory alone: a restarted plugin is told again by the brokers.
//
// GPU memory is held by descriptors, without CUDA. It is free once they are closed, which happens
// on threads of each link alone, because a sick GPU can block it: LinkView::closing, and Open's
// kBusy. What a pod sent in place of GPU memory can block it as well (platform/daemon/closing.h).
//
// The class is thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "platform/daemon/event_loop.h"
#include "plugin/keeper/link_server.h"
#include "plugin/keeper/link_view.h"

namespace gpushm::plugin {

class Keeper {
 public:
  struct Options {
    // Holds a folder for each allocation, made by the caller (0755) and mounted into its sidecar
    // alone; this one is 0700.
    std::string links_folder;
    // The broker of that allocation is there, or its process is gone. On the keeper's thread, in
    // order; must not block, may call the keeper. May come shortly after a Close that overtook it.
    std::function<void(const std::string& name, bool open)> on_link;
    // A broker's start took so long, from its process' start until it served: once for each, by the
    // next Count, or else when it goes. On the keeper's thread; must not block or call the keeper.
    std::function<void(double seconds)> on_ready;
    // LinkServer's (7): for counting. On the keeper's thread; must not block or call the keeper.
    std::function<void(ForeignStep)> on_foreign = {};
    LinkServer::Settings settings{};
    // What the statements of all links together may take of this process' memory. When that is
    // reached, a link that takes more than its share of it is dropped: whoever grows, or else the
    // largest. A small one always finds room.
    uint64_t statement_bytes = uint64_t{1} << 30;
    // How long Open waits for the former holder's descriptors to be closed, and Close for its turn.
    int64_t close_wait_ms = 1000;
  };

  static Result<std::unique_ptr<Keeper>> Start(Options options);
  // Ends within about a second. Sockets' files stay, for the plugin that follows.
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  // From when it returns a broker can connect at <links_folder>/<name>/plugin.sock. The same again
  // changes nothing, but for a socket's file that somebody took away. Another grant than before:
  // the allocation is another one, see Drop. kInvalidArgument; kSystem: is the folder there? kBusy:
  // what the former holder had is not closed yet; ask again.
  Result<void> Open(const std::string& name, const LinkGrant& grant);

  // These allocations have other holders from now on: what is kept goes, brokers are disconnected,
  // and nobody can connect before the next Open. A process that was connected never can again. Does
  // not wait for descriptors to be closed.
  void Drop(const std::vector<std::string>& names);

  // The same, and the socket's file goes. Returns after close_wait_ms also where the thread of all
  // links hangs; it does it then as soon as it can.
  void Close(const std::string& name);

  // Everything that is kept goes to the plugin that follows, as its brokers would state it: that
  // one listens at the links' paths, or will before the deadline. For the end of this one; brokers
  // that live connect to the other by themselves.
  // Ends early when `goes_on` is false: nobody takes over any more.
  void HandOver(const Deadline& deadline, const std::function<bool()>& goes_on);

  // Told to the brokers on that GPU, now and when they connect.
  void SetDevice(const std::string& gpu, bool lost, const std::string& reason);

  // All links, by name; also such as were dropped or closed while a process or a descriptor of
  // theirs is left. One after the other, because one alone can take megabytes: `visit` is called on
  // the caller's thread. False: their thread had not answered by the deadline.
  bool EachLink(const Deadline& deadline, const std::function<void(LinkView)>& visit);
  // All of them at once, for tests.
  std::vector<LinkView> Look();

  // What all clients counted since the plugin started, those of ended pods included. Nothing is
  // lost where nobody asks: what goes is read a last time. Nothing: as above.
  std::optional<protocol::CounterValues> Count(const Deadline& deadline);

  // Physical bytes of the buffers that are kept, by their GPU's UUID. Cheap, unlike Look: it is
  // asked for several times each time that the GPUs are sampled.
  std::map<std::string, uint64_t> BufferBytes();

  // How long the thread of all links has been doing what it does now, as EventLoop::BusyMs. Does
  // not wait for it.
  int64_t BusyMs() const { return loop_->BusyMs(); }

  // The clients of all brokers that are seen in this process' PID namespace. 8 us each.
  std::vector<ClientProcess> Processes();

 private:
  Keeper(Options options, std::unique_ptr<EventLoop> loop);

  // Runs it on the loop's thread and waits for the answer. At once on that thread itself.
  template <typename Call>
  auto OnLoop(Call call) -> decltype(call()) {
    if (std::this_thread::get_id() == thread_.get_id()) return call();
    std::promise<decltype(call())> promise;
    loop_->Post([&] {
      if constexpr (std::is_void_v<decltype(call())>) {
        call();
        promise.set_value();
      } else {
        promise.set_value(call());
      }
    });
    return promise.get_future().get();
  }
  // The same, with patience until then. What `call` refers to outlives the keeper.
  template <typename Call>
  auto OnLoopBy(const Deadline& deadline, Call call) -> std::optional<decltype(call())> {
    auto task = std::make_shared<std::packaged_task<decltype(call())()>>(std::move(call));
    auto answer = task->get_future();
    loop_->Post([task] { (*task)(); });
    const auto patience = std::chrono::nanoseconds(deadline.RemainingNs());
    if (answer.wait_for(patience) != std::future_status::ready) return std::nullopt;
    return answer.get();
  }
  // As LinkServer::Callbacks::make_room, for that link.
  Result<void> MakeRoom(const std::string& name);
  Result<void> OpenHere(const std::string& name, const LinkGrant& grant,
                        std::shared_ptr<Closing>* closing);
  LinkServer& Link(const std::string& name);
  // Links of which nothing is left.
  void Tidy();

  const Options options_;
  std::unique_ptr<EventLoop> loop_;
  // The loop's.
  StatementBudget budget_;
  std::map<std::string, std::unique_ptr<LinkServer>> links_;
  protocol::CounterValues ended_counters_{};  // Of pods that are gone.
  std::map<std::string, GpuHealth> sick_;     // By GPU; healthy ones are not in it.
  std::thread thread_;
};

}  // namespace gpushm::plugin
