// The plugin's front end for dynamic resource allocation (docs/design/dra.md): the kubelet's gRPC
// services on two sockets, and the node's ResourceSlices.
//
// Invariants:
//   1. No slice is written before the kubelet said that it uses the plugin. The scheduler binds
//   pods
//      within 50 ms of a slice, and a kubelet that does not know the driver yet refuses such a pod
//      and tries again after more than a minute.
//   2. Prepare answers with an error only if waiting does not help, or after prepare_ms. The
//   kubelet
//      repeats a failed call after more than a minute, and its own limit for a call is 45 s.
//   3. A claim's answer is made from the API server's object each time, and is the same as long as
//      the claim is prepared.
//   4. What the kubelet or somebody else removed comes back: slices within slices_ms, sockets
//   within
//      look_ms.
//   5. The kubelet hears a change of a GPU's health at once, and all GPUs' health again within
//      health_ms + look_ms. It takes a device that it has not heard of for 30 s for unknown, and
//      forgets all devices of the driver when any stream of it ends, also that of the plugin that
//      ends in an update.
//
// Threads: the public functions from any thread. Inside, one thread accepts connections and repeats
// the health, another one writes slices. Calls run on gRPC's threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "platform/base/status.h"
#include "platform/kubernetes/api_client.h"
#include "plugin/dra/devices.h"
#include "plugin/dra/handler.h"

namespace gpushm::plugin::dra {

struct FrontEndState {
  bool registered = false;  // The kubelet uses the plugin.
  uint64_t registrations = 0;
  bool published = false;  // The slices are as the plugin wants them.
  std::string problem;     // Why the slices are not; empty: none.
};

class FrontEnd {
 public:
  struct Times {
    int64_t prepare_ms = 40'000;  // For a call, of the kubelet's 45 s.
    int64_t unprepare_ms = 40'000;
    int64_t request_ms = 10'000;      // For one request to the API server.
    int64_t slices_ms = 10'000;       // Between two looks at the slices.
    int64_t eager_ms = 1000;          // The same while the kubelet may still be deleting them,
    int64_t eager_for_ms = 30'000;    // for that long after each registration.
    int64_t unsupported_ms = 60'000;  // The same if the API server cannot hold them.
    int64_t look_ms = 1000;           // Between two looks at the sockets.
    int64_t health_ms = 5000;         // Between two lists of all GPUs' health.
    int64_t backoff_ms = 200;         // After a failed request for a claim; doubles up to 5 s.
    int64_t stop_ms = 2000;           // For calls in progress when stopping.
  };
  struct Options {
    std::string node;
    // Of the kubelet; this process and the kubelet see them at the same paths.
    std::string registry_folder = "/var/lib/kubelet/plugins_registry";
    std::string plugins_folder = "/var/lib/kubelet/plugins";
    kubernetes::ApiAddress api;
    Times times = {};
  };

  // `handler` must outlive it. The folders and the API server may appear later.
  // kAlreadyExists: two plugins serve there. kInvalidArgument: a path is too long.
  static Result<std::unique_ptr<FrontEnd>> Start(Options options, Handler* handler);
  // kAlreadyExists: a plugin with this front end serves the node.
  static Result<void> CheckAlone(const std::string& registry_folder);
  FrontEnd(const FrontEnd&) = delete;
  FrontEnd& operator=(const FrontEnd&) = delete;
  // Removes the sockets; the slices stay, and the kubelet deletes them after 30 s.
  ~FrontEnd();

  // From now on, calls that the Handler refuses go to the plugin with the other socket names, which
  // takes over.
  void HandOver();
  // False: the kubelet has not said by the deadline that it uses the plugin.
  bool WaitRegistered(const Deadline& deadline) const;

  // What the slices and the health streams must say from now on. Returns before they do.
  void SetOffer(const Offer& offer);
  FrontEndState state() const;

 private:
  class Running;
  explicit FrontEnd(std::unique_ptr<Running> running);
  std::unique_ptr<Running> running_;
};

}  // namespace gpushm::plugin::dra
