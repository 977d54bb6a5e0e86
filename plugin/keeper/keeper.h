// The plugin's side of all links: the sockets that brokers connect to, and what is kept for each of
// them. A broker that was killed finds its buffers again that way (docs/design/plugin.md,
// contract/protocol/link.h).
//
// One thread serves all links, and one broker cannot hold up another (link_server.h). Kept state is
// in memory only: the brokers state everything again to a restarted plugin.
//
// Descriptors hold GPU memory without CUDA, and the memory is free once they are closed. Each link
// has its own threads for that, because an unhealthy GPU can block a close: see LinkView::closing
// and Open's kBusy. A foreign descriptor, which a pod sent in place of GPU memory, can block it as
// well (platform/daemon/closing.h).
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

namespace gpushm::plugin::keeper {

class Keeper {
 public:
  struct Options {
    // Contains a folder for each allocation, made by the caller (0755) and mounted into its sidecar
    // alone. This folder itself is 0700.
    std::string links_folder;
    // Contains a folder for each allocation whose terms have `others`, made by the caller (0755)
    // and mounted into the other pods. This folder itself is 0700.
    std::string others_folder = {};
    // The broker of that allocation has connected, or its process has ended. Called on the keeper's
    // thread, in order. It must not block, but may call the keeper. It may come shortly after a
    // Close.
    std::function<void(const std::string& name, bool open)> on_link;
    // How long a broker took from its process's start until it served. Called once for each, by the
    // next Count, or else when the broker ends. Called on the keeper's thread; must not block or
    // call the keeper.
    std::function<void(double seconds)> on_ready;
    // For counting the steps of LinkServer's invariant 7. Called on the keeper's thread; must not
    // block or call the keeper.
    std::function<void(ForeignStep)> on_foreign = {};
    LinkServer::Settings settings{};
    // How much of this process's memory the statements of all links may take together. Above it, a
    // link that takes more than its share is dropped: the one that grows, or else the largest. A
    // small link always finds room.
    uint64_t statement_bytes = uint64_t{1} << 30;
    // How long Open waits until the former holder's descriptors are closed, and Close for its turn.
    int64_t close_wait_ms = 1000;
  };

  static Result<std::unique_ptr<Keeper>> Start(Options options);
  // Ends within about a second. The socket files stay for the next plugin.
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  // After it returns, a broker can connect at <links_folder>/<name>/plugin.sock. A repeated call
  // changes nothing, but restores a socket file that somebody removed. Different terms mean a
  // different allocation, see Drop. kInvalidArgument. kSystem: check that the folder exists. kBusy:
  // the former holder's descriptors are not closed yet; try again.
  Result<void> Open(const std::string& name, const LinkTerms& terms);

  // These allocations have other holders from now on. Drops what is kept, disconnects the brokers,
  // and lets nobody connect before the next Open. A process that was connected can never connect
  // again. Does not wait until descriptors are closed.
  void Drop(const std::vector<std::string>& names);

  // The same, and removes the socket file. Returns after close_wait_ms even if the thread of all
  // links hangs; that thread then does it as soon as it can.
  void Close(const std::string& name);

  // Hands over all kept state to the next plugin, in the form in which its brokers would state it.
  // That plugin listens at the links' paths, or will before the deadline. For the end of this
  // plugin; running brokers connect to the next one by themselves. Ends early when `goes_on` is
  // false because no plugin takes over any more.
  void HandOver(const Deadline& deadline, const std::function<bool()>& goes_on);

  // Reported to the brokers on that GPU, now and when they connect.
  void SetDevice(const std::string& gpu, bool lost, const std::string& reason);

  // Visits all links by name, including dropped or closed ones of which a process or a descriptor
  // is left. Visits one at a time, because each can take megabytes; `visit` runs on the caller's
  // thread. False: the links' thread did not answer by the deadline.
  bool EachLink(const Deadline& deadline, const std::function<void(LinkView)>& visit);
  // All of them at once; for tests.
  std::vector<LinkView> Look();

  // What all clients have counted since the plugin started, including those of ended pods. Nothing
  // is lost between calls, because counters are read a last time before they go. Nothing: as above.
  std::optional<protocol::CounterValues> Count(const Deadline& deadline);

  // Physical bytes of the kept buffers, by their GPU's UUID. Cheap, unlike Look: it is called
  // several times for each sample of the GPUs.
  std::map<std::string, uint64_t> BufferBytes();

  // How many processes of other pods that share the claim hold its memory and have not ended.
  // (Those of a hostIPC pod may hold it for ever.) Nothing: the links' thread did not answer by the
  // deadline.
  std::optional<size_t> CountUsers(const std::string& name, const Deadline& deadline);

  // How long the links' thread has been busy with its current task, as EventLoop::BusyMs. Does not
  // wait for it.
  int64_t BusyMs() const { return loop_->BusyMs(); }

  // The clients of all brokers that are visible in this process's PID namespace. Takes 8 us for
  // each.
  NodeProcesses Processes();

 private:
  Keeper(Options options, std::unique_ptr<EventLoop> loop);

  // Runs the call on the loop's thread and waits for the result. On that thread itself it runs
  // immediately.
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
  // The same, but waits only until the deadline. What `call` refers to must outlive the keeper.
  template <typename Call>
  auto OnLoopBy(const Deadline& deadline, Call call) -> std::optional<decltype(call())> {
    auto task = std::make_shared<std::packaged_task<decltype(call())()>>(std::move(call));
    auto answer = task->get_future();
    loop_->Post([task] { (*task)(); });
    const auto patience = std::chrono::nanoseconds(deadline.RemainingNs());
    if (answer.wait_for(patience) != std::future_status::ready) return std::nullopt;
    return answer.get();
  }
  // LinkServer::Callbacks::make_room for that link.
  Result<void> MakeRoom(const std::string& name);
  Result<void> OpenHere(const std::string& name, const LinkTerms& terms,
                        std::shared_ptr<Closing>* closing);
  LinkServer& Link(const std::string& name);
  // Removes links of which nothing is left.
  void Tidy();

  const Options options_;
  std::unique_ptr<EventLoop> loop_;
  // Used on the loop's thread only.
  StatementBudget budget_;
  std::map<std::string, std::unique_ptr<LinkServer>> links_;
  protocol::CounterValues ended_counters_{};  // Of pods that have ended.
  SickGpus sick_;
  std::thread thread_;
};

}  // namespace gpushm::plugin::keeper
