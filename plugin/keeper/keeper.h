// The plugin's side of all links: the sockets that brokers connect to, and what is kept of each, so
// that a broker that was killed finds its buffers again (docs/plugin.md, runtime/protocol/link.h).
//
// One thread of its own serves all links; one broker cannot hold up another (link_server.h). What
// is kept is in memory alone: a restarted plugin is told again by the brokers.
//
// GPU memory is held by descriptors, without CUDA. It is free once they are closed, which happens
// on other threads, because a sick GPU can block it: LinkView::closing, and Open's kBusy.
//
// The class is thread-safe.
#pragma once

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "plugin/keeper/link_server.h"
#include "plugin/keeper/link_view.h"
#include "runtime/base/status.h"
#include "runtime/daemon/event_loop.h"
#include "runtime/daemon/worker.h"

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
    LinkServer::Settings settings{};
    // How long Open waits for the former holder's descriptors to be closed.
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

  // The same, and the socket's file goes.
  void Close(const std::string& name);

  // Told to the brokers on that GPU, now and when they connect.
  void SetDevice(const std::string& gpu, bool lost, const std::string& reason);

  // All links, by name; also such as were dropped or closed while a process or a descriptor of
  // theirs is left.
  std::vector<LinkView> Look();

  // What all clients counted since the plugin started, those of ended pods included. Nothing is
  // lost where nobody asks: what goes is read a last time.
  protocol::CounterValues Count();

  // Physical bytes of the buffers that are kept, by their GPU's UUID. Cheap, unlike Look: it is
  // asked for several times each time that the GPUs are sampled.
  std::map<std::string, uint64_t> BufferBytes();

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
  Result<void> OpenHere(const std::string& name, const LinkGrant& grant,
                        std::shared_ptr<Closing>* closing);
  LinkServer& Link(const std::string& name);
  // Links of which nothing is left.
  void Tidy();

  const Options options_;
  Worker closer_;
  std::unique_ptr<EventLoop> loop_;
  // The loop's.
  std::map<std::string, std::unique_ptr<LinkServer>> links_;
  protocol::CounterValues ended_counters_{};  // Of pods that are gone.
  std::map<std::string, GpuHealth> sick_;     // By GPU; healthy ones are not in it.
  std::thread thread_;
};

}  // namespace gpushm::plugin
