// The device plugin service of one resource: answers the kubelet's calls through a Handler and
// tells every stream of ListAndWatch the full list of devices, the newest one first.
//
// It lives as long as the plugin. Connections are handed to it (Serve), so sockets can come and go
// with the kubelet without stopping anything.
//
// Invariants:
//   1. A stream gets the list as soon as it opens, and again after each change; of changes that it
//      was too slow for it gets the last. SetDevices never waits for a stream.
//   2. IDs that were never advertised do not reach the Handler.
//
// Threads: any. The Handler and `on_call` are called from gRPC's threads, `on_streams` from this
// object's own; `on_streams` must not block.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "platform/base/clock.h"
#include "platform/base/unique_fd.h"
#include "plugin/kubelet/handler.h"

namespace gpushm::plugin::kubelet {

struct Advertised {
  std::string id;
  bool healthy = true;
  friend bool operator==(const Advertised&, const Advertised&) = default;
};

// An answered call, for histograms.
struct CallRecord {
  enum class Kind { kAllocate, kPreStart, kPrefer };
  Kind kind;
  Resource resource;
  int64_t ns;
  std::optional<Code> error;  // None: it was granted.
};
using OnCall = std::function<void(const CallRecord&)>;

class PluginServer {
 public:
  struct Config {
    Resource resource = Resource::kMemory;
    bool prefers = false;  // GetPreferredAllocation is offered.
    OnCall on_call;        // May be empty.
    // How many streams are open, after each change.
    std::function<void(size_t open)> on_streams;
  };

  // `handler` outlives this.
  PluginServer(Config config, Handler* handler);
  PluginServer(const PluginServer&) = delete;
  PluginServer& operator=(const PluginServer&) = delete;
  ~PluginServer();

  // A connection that was accepted, non-blocking.
  void Serve(UniqueFd connection);
  // All devices there are, sorted by ID for the kubelet.
  void SetDevices(std::vector<Advertised> devices);
  // From now on what the Handler answers with kUnavailable is asked of the plugin that listens at
  // `path`, or begins to within seconds.
  void ForwardTo(const std::string& path);
  // Calls of the kubelet that are under way, forwarded ones included; streams are none.
  size_t calls() const;
  // Ends the streams that are open: politely, or for those that take nothing, by cancelling. Both
  // come back as `on_streams`.
  void EndStreams();
  void CancelStreams();

  // Ends streams, connections and calls; waits until `deadline` and for calls inside the Handler.
  // Nothing is called back afterwards.
  void Shutdown(const Deadline& deadline);

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace gpushm::plugin::kubelet
