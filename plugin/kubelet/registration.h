// Serves the resources to the kubelet and keeps them registered, whatever happens to the kubelet,
// its folder and its sockets.
//
// The kubelet does not announce a restart: it empties its folder and creates a new kubelet.sock. So
// the folder is watched (by inotify, and by stat from time to time because events can be lost), and
// a resource is registered again when
//   - kubelet.sock is a different file than at its last registration,
//   - its stream of ListAndWatch ended, or did not open within open_ms of a registration.
// If only its own socket was removed, it listens again immediately. The kubelet still reads the
// list, and a needless registration would show it no devices for a moment.
//
// Invariants:
//   1. A resource listens and serves before it registers, because the kubelet calls back inside
//      Register.
//   2. There is no registration while a former stream is open. The stream is ended, its end
//      awaited, and a kubelet that knew the plugin gets grace_ms to notice. A kubelet before 1.37
//      identifies a plugin by its resource alone, so the end of the old stream disconnects the new
//      registration (k/k #121994, #127803). A later one refuses a socket that it still considers
//      connected.
//   3. While a stream is open and the kubelet's socket is the same, nothing is registered. Nothing
//      is registered before its first SetDevices.
//   4. Every wait has a deadline. Attempts back off from backoff_first_ms to backoff_max_ms, and a
//      new kubelet.sock ends a back-off immediately.
//   5. Another process that accepts on one of the plugin's names is never pushed aside.
//
// Names. Each resource has two sockets, "NAME.sock" and "NAME-2.sock", and uses one of them. After
// a registration that came too early, kubelets since 1.37 can consider its socket connected
// indefinitely. So a refused registration is repeated on the other socket.
//
// Handing over. A plugin that takes over registers on the free sockets (Options::beside) while the
// previous plugin still serves. The previous one forwards what it no longer decides (HandOver),
// until the kubelet calls the new one. Since Kubernetes 1.37, the end of the old streams then
// changes nothing. Before, it disconnects the new registration too. The new plugin notices that and
// registers again, as after any stream that ends. For a moment the kubelet has no devices.
//
// Threads: the public functions from any thread. Inside, one thread watches, accepts and decides.
// Register, which blocks, has a thread for each resource. Calls run on gRPC's threads.
#pragma once

#include <algorithm>
#include <array>
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

// The registration of one resource at one moment.
struct ResourceState {
  bool advertised = false;     // SetDevices was called.
  bool registered = false;     // The kubelet answered, and the registration has not ended.
  bool stream_open = false;    // The kubelet reads the list.
  uint64_t registrations = 0;  // Successful ones since the start.
  uint64_t failures = 0;       // Failed attempts, and streams that were lost or never opened.
  std::string last_error;      // Empty if there is no error.

  bool usable() const { return registered && stream_open; }
};

struct State {
  std::string withheld;  // Why the plugin deliberately does not register; empty: it does.
  std::array<ResourceState, binding::kResources.size()> resources;

  const ResourceState& Of(binding::Resource resource) const {
    return resources.at(static_cast<size_t>(resource));
  }
  ResourceState& Of(binding::Resource resource) {
    return resources.at(static_cast<size_t>(resource));
  }
  // Whether the kubelet knows all of them.
  bool usable() const { return std::ranges::all_of(resources, &ResourceState::usable); }
};

class Registration {
 public:
  struct Times {
    int64_t poll_ms = 1000;       // Between checks when no change was noticed.
    int64_t poll_blind_ms = 100;  // The same on a node without a free inotify instance.
    // For one Register; the kubelet itself limits its call back to 10 s.
    int64_t register_ms = 15'000;
    int64_t open_ms = 5000;  // From the answer to Register to an open stream.
    int64_t end_ms = 1000;   // For a polite end of a stream.
    int64_t grace_ms = 200;  // Invariant 2.
    int64_t backoff_first_ms = 100;
    int64_t backoff_max_ms = 10'000;
    int64_t stable_ms = 10'000;  // A stream that lasted this long resets the back-off.
    int64_t stop_ms = 2000;      // For calls in progress when stopping.
    int64_t drain_ms = 200;      // Quiet time, in case the kubelet was about to make a call.
  };

  struct Options {
    std::string folder = "/var/lib/kubelet/device-plugins";
    std::string kubelet_socket = "kubelet.sock";
    // Without ".sock", see "Names" above.
    binding::PerResource<std::string> sockets = {
        {"gpushm-memory", "gpushm-attach", "gpushm-exclusive", "gpushm-gpus", "gpushm-nvlink"}};
    bool beside = false;  // Whether another plugin hands over to this one.
    ResourceNames names = {};
    bool inotify = true;  // False: inotify does not work; checks every poll_blind_ms instead.
    OnCall on_call = {};  // For histograms; any thread. May be empty.
    Times times = {};
  };

  // `handler` must outlive it. The folder and the kubelet may appear later.
  // kAlreadyExists: another plugin serves there. kInvalidArgument: a path is too long.
  static Result<std::unique_ptr<Registration>> Start(Options options, Handler* handler);
  // kAlreadyExists: another plugin serves there.
  static Result<void> CheckAlone(const Options& options);
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration();

  // All devices of a resource with their health; replaces the list that the kubelet has.
  void SetDevices(binding::Resource resource, std::vector<Advertised> devices);

  // Ends the stream and registers again, with twice the grace of the last time. Use it if the
  // kubelet ignores a registration that looks right from here (usable(), but
  // PodResources::Allocatable lacks the resource).
  void Renew(binding::Resource resource);

  // To a plugin that was started with `beside`: from now on, calls that the Handler answers with
  // kUnavailable go to that plugin.
  void HandOver();
  // Waits until the kubelet has had no call in progress here for a moment, because since 1.37 it
  // aborts those when a stream ends. Use it after a HandOver, when the kubelet knows the other
  // plugin.
  void Drain(const Deadline& deadline) const;

  State state() const;
  // Waits until `reached` is true for the state; returns false if it is not by the deadline.
  bool WaitFor(const std::function<bool(const State&)>& reached, const Deadline& deadline) const;

  // Removes the plugin's sockets from the kubelet's folder. Takes stop_ms plus the longest call
  // inside the Handler. The destructor does the same.
  void Stop();

 private:
  class Registrar;
  explicit Registration(std::unique_ptr<Registrar> registrar);
  std::unique_ptr<Registrar> registrar_;
};

}  // namespace gpushm::plugin::kubelet
