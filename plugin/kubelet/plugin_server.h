// The device plugin service of one resource: answers the kubelet's calls through a Handler, and
// sends the full list of devices to every stream of ListAndWatch, always the newest one.
//
// It lives as long as the plugin. Connections are passed to it (Serve), so sockets can come and go
// with the kubelet without stopping anything.
//
// Invariants:
//   1. A stream gets the list as soon as it opens, and again after each change. If it was too slow
//      for several changes, it gets the last one. SetDevices never waits for a stream.
//   2. IDs that were never advertised do not reach the Handler.
//
// Threads: any. The Handler and `on_call` are called from gRPC's threads, `on_streams` from this
// object's own thread; `on_streams` must not block.
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

// One answered call, for histograms.
struct CallRecord {
  enum class Kind { kAllocate, kPreStart };
  Kind kind;
  binding::Resource resource;
  int64_t ns;
  std::optional<Code> error;  // Absent: it succeeded.
};
using OnCall = std::function<void(const CallRecord&)>;

class PluginServer {
 public:
  struct Config {
    binding::Resource resource = binding::Resource::kMemory;
    OnCall on_call;  // May be empty.
    // Called after each change with the number of open streams.
    std::function<void(size_t open)> on_streams;
  };

  // `handler` must outlive this object.
  PluginServer(Config config, Handler* handler);
  PluginServer(const PluginServer&) = delete;
  PluginServer& operator=(const PluginServer&) = delete;
  ~PluginServer();

  // Takes an accepted, non-blocking connection.
  void Serve(UniqueFd connection);
  // All existing devices; sorted by ID for the kubelet.
  void SetDevices(std::vector<Advertised> devices);
  // From now on, calls that the Handler answers with kUnavailable go to the plugin that listens at
  // `path`, or will within seconds.
  void ForwardTo(const std::string& path);
  // The kubelet's calls in progress, including forwarded ones, without streams.
  size_t calls() const;
  // Ends the open streams: politely, or by cancelling those that accept nothing. Both result in
  // `on_streams`.
  void EndStreams();
  void CancelStreams();

  // Ends streams, connections and calls. Waits until `deadline`, and also for calls inside the
  // Handler. Nothing is called back afterwards.
  void Shutdown(const Deadline& deadline);

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace gpushm::plugin::kubelet
