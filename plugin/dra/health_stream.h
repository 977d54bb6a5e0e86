// The service DRAResourceHealth: the kubelet shows the health of a claim's devices in the status of
// its pods (allocatedResourcesStatus). It has no other effect; the taints in the slices keep new
// pods away.
//
// Invariants:
//   1. A stream gets the health of all devices when it opens, after each change, and by Repeat.
//   2. Devices are named as in the slices. GPUs that somebody else hands out are in the list too,
//      because pods that came before keep them.
//   3. No stream holds anything up, and one that reads nothing keeps one list (Broadcast).
//
// Threads: any.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "platform/base/clock.h"
#include "plugin/dra/devices.h"

namespace gpushm::plugin::dra {

// In the registration's list of services.
inline constexpr char kHealthService[] = "v1alpha1.DRAResourceHealth";
// The kubelet cuts off what is longer, in bytes.
inline constexpr size_t kMaxHealthMessageBytes = 1024;

struct DeviceState {
  std::string name;     // As in the slices.
  std::string problem;  // Why it is unhealthy, valid UTF-8. Empty: it is healthy.
  friend bool operator==(const DeviceState&, const DeviceState&) = default;
};
std::vector<DeviceState> StatesOf(const Offer& offer);

class HealthStream {
 public:
  // Becomes a service of the server that `builder` builds, and must outlive that.
  HealthStream(std::string pool, grpc::ServerBuilder* builder);
  HealthStream(const HealthStream&) = delete;
  HealthStream& operator=(const HealthStream&) = delete;
  ~HealthStream();  // After Shutdown.

  // When the server has been started. No other function before.
  void Start();
  void Set(const Offer& offer);
  // Sends the list again. Nothing before the first Set.
  void Repeat();
  // Ends the streams, and then `server`, for whose calls it waits until `deadline`.
  void Shutdown(grpc::Server* server, const Deadline& deadline);

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace gpushm::plugin::dra
