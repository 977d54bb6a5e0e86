// Serves both resources to the kubelet and keeps them registered, whatever happens to the kubelet,
// its folder and its sockets.
//
// The kubelet tells nobody that it restarted: it empties its folder and makes a new kubelet.sock.
// So the folder is watched (inotify, and stat from time to time since events can be lost), and each
// resource is registered again when
//   - kubelet.sock is another file than at its last registration,
//   - its stream of ListAndWatch ended, or did not open within open_ms of a registration.
// When only its own socket was removed, it listens again at once; the kubelet goes on reading the
// list, and a registration for nothing would show it a moment without devices.
//
// Invariants:
//   1. A resource listens and serves before it registers: the kubelet calls back inside Register.
//   2. No registration while a former stream of ours is open: it is ended, its end awaited, and a
//      kubelet that knew us given grace_ms to notice. A kubelet before 1.37 knows a plugin by its
//      resource alone, so the end of the old stream disconnects the new registration (k/k #121994,
//      #127803). A later one refuses a socket that it holds for connected.
//   3. While a stream is open and the kubelet's socket is the same, nothing is registered. Nothing
//      is registered before its first SetDevices.
//   4. Every wait has a deadline; attempts back off from backoff_first_ms to backoff_max_ms, and a
//      new kubelet.sock ends that at once.
//   5. Another process that accepts on one of our names is never pushed aside.
//
// Names. Each resource has two sockets, "NAME.sock" and "NAME-2.sock", and is on one of them. After
// a registration that came too early, kubelets since 1.37 can hold its socket for connected for
// ever; so a registration that is refused is repeated on the other one.
//
// Handing over. A plugin that takes over registers on the sockets that are free (Options::beside)
// while the one before it still serves. That one forwards what it no longer decides (HandOver),
// until the kubelet calls the new one. Since Kubernetes 1.37 the end of the old streams then
// changes nothing. Before, it disconnects the new registration too, which is noticed and repeated
// as any stream that ends: for a moment the kubelet has no devices.
//
// Threads: the public functions from any thread. Inside, one thread watches, accepts and decides;
// Register, which blocks, has a thread for each resource; calls run on gRPC's threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "plugin/kubelet/handler.h"
#include "plugin/kubelet/plugin_server.h"
#include "plugin/kubelet/resource_names.h"

namespace gpushm::plugin::kubelet {

// One resource's registration at one moment.
struct ResourceState {
  bool advertised = false;     // SetDevices was called.
  bool registered = false;     // The kubelet answered, and nothing ended that since.
  bool stream_open = false;    // It listens to our list.
  uint64_t registrations = 0;  // Successful ones since the start.
  uint64_t failures = 0;       // Attempts that failed, streams that were lost or never opened.
  std::string last_error;      // Empty while all is well.

  bool usable() const { return registered && stream_open; }
};

struct State {
  std::string withheld;  // Why the plugin does not register on purpose; empty: it is to.
  ResourceState memory;
  ResourceState attach;

  const ResourceState& Of(Resource resource) const {
    return resource == Resource::kMemory ? memory : attach;
  }
  // The kubelet knows both.
  bool usable() const { return memory.usable() && attach.usable(); }
};

class Registration {
 public:
  struct Times {
    int64_t poll_ms = 1000;        // Between looks when nothing was noticed.
    int64_t poll_blind_ms = 100;   // The same on a node without a free inotify instance.
    int64_t register_ms = 15'000;  // One Register; the kubelet itself gives the dial-back 10 s.
    int64_t open_ms = 5000;        // From the answer to Register to an open stream.
    int64_t end_ms = 1000;         // For the polite end of a stream.
    int64_t grace_ms = 200;        // Invariant 2.
    int64_t backoff_first_ms = 100;
    int64_t backoff_max_ms = 10'000;
    int64_t stable_ms = 10'000;  // A stream that lasted so long makes the next back-off short.
    int64_t stop_ms = 2000;      // For calls under way when stopping.
    int64_t drain_ms = 200;      // Without a call, for the kubelet that was about to make one.
  };

  struct Options {
    std::string folder = "/var/lib/kubelet/device-plugins";
    std::string kubelet_socket = "kubelet.sock";
    std::string memory_socket = "gpushm-memory";  // Without ".sock": see "Names" above.
    std::string attach_socket = "gpushm-attach";
    bool beside = false;  // Another plugin hands over to this one.
    ResourceNames names = {};
    bool prefers = false;  // The Handler's Prefer is offered to the kubelet.
    bool inotify = true;   // False where it does not work: looks every poll_blind_ms instead.
    OnCall on_call = {};   // For histograms; any thread. May be empty.
    Times times = {};
  };

  // `handler` outlives it. The folder and the kubelet may appear later.
  // kAlreadyExists: another plugin serves there. kInvalidArgument: a path is too long.
  static Result<std::unique_ptr<Registration>> Start(Options options, Handler* handler);
  // kAlreadyExists: another plugin serves there.
  static Result<void> CheckAlone(const Options& options);
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration();

  // All devices of a resource, with their health: replaces the list that the kubelet has.
  void SetDevices(Resource resource, std::vector<Advertised> devices);

  // Ends the stream and registers again, with twice the grace of the last time: for whoever sees
  // that the kubelet does not believe in a registration that looks well from here (usable(), but
  // PodResources::Allocatable lacks the resource).
  void Renew(Resource resource);

  // To a plugin that was started `beside` this one: what the Handler answers with kUnavailable from
  // now on is asked of that one.
  void HandOver();
  // Until the kubelet has no call open here, and a moment later: since 1.37 it ends those that are
  // open when a stream ends. For after a HandOver, when the kubelet knows the other plugin.
  void Drain(const Deadline& deadline) const;

  State state() const;
  // Waits until `reached` holds of the state; false if it does not before the deadline.
  bool WaitFor(const std::function<bool(const State&)>& reached, const Deadline& deadline) const;

  // Leaves the kubelet's folder as if never there. Takes stop_ms and the longest call that is
  // inside the Handler. The destructor does the same.
  void Stop();

 private:
  class Registrar;
  explicit Registration(std::unique_ptr<Registrar> registrar);
  std::unique_ptr<Registrar> registrar_;
};

}  // namespace gpushm::plugin::kubelet
