// A kubelet for tests: what kubelets 1.28 to 1.37 do with a device plugin, without containers. It
// serves the real interfaces at real sockets in a folder of the test's, so the plugin can be in the
// same process or in another one.
//
// What it does as the kubelet does, see docs of device plugins and kubernetes/kubernetes,
// pkg/kubelet/cm/devicemanager:
//   - Register calls back (dial, GetDevicePluginOptions) before it answers; the request's own
//     options are ignored; one ListAndWatch per registration; messages of at most 4 MiB.
//   - The end of a stream makes every device unhealthy at once; after a grace the resource is gone.
//   - Pods are admitted one after the other, containers in the order of the spec, a container's
//     resources in random order. A failed Allocate is the end of the pod.
//   - PreStartContainer before each start of a container; a failure is repeated.
//   - A start empties the folder of sockets and reads back who has what; capacity is zero until
//     plugins register; containers that run are not allocated again.
// Times are scaled by the test.
//
// Threads: the public functions from any thread; pods are admitted one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "plugin/binding/snapshot.h"
#include "plugin/kubelet/testing/device_book.h"

namespace gpushm::plugin::kubelet::testing {

enum class Role {
  kInit,     // Plain init container: runs to its end.
  kSidecar,  // Init container with restartPolicy Always.
  kApp,
};

struct ContainerSpec {
  std::string name;
  Role role = Role::kApp;
  std::map<std::string, size_t> limits;  // Extended resources.
};

struct PodSpec {
  Pod pod;
  std::vector<ContainerSpec> containers;  // Init containers and sidecars first.
};

struct ContainerStatus {
  enum class State { kWaiting, kRunning, kCompleted };
  State state = State::kWaiting;
  std::string message;  // Why it waits: the text of its pod's event.
  int starts = 0;
  std::map<std::string, Ids> ids;  // By resource.
  std::vector<Answer> answers;     // What Allocate gave it.
};

struct PodStatus {
  bool failed = false;  // For good: UnexpectedAdmissionError.
  std::string message;
  std::map<std::string, ContainerStatus> containers;
};

class ScriptedKubelet {
 public:
  struct Options {
    std::string folder;  // Of device plugins; is made.
    std::string kubelet_socket = "kubelet.sock";
    std::string pod_resources_socket;  // Path; none if empty.
    // Up to 1.36: plugins are known by their resource alone, so that the end of an old stream
    // disconnects the new registration. Later: by resource and socket, and one that is connected
    // is refused.
    bool known_by_resource_alone = false;
    // Up to about 1.25: a start removes every file of the folder, not only sockets.
    bool wipes_all_files = false;
    // From the end of a stream to the kubelet's noticing it: goroutines are not scheduled at once.
    int64_t notice_ms = 0;
    int64_t dial_ms = 10'000;
    int64_t pre_start_ms = 30'000;
    int64_t grace_ms = 300'000;  // endpointStopGracePeriod
    int64_t retry_ms = 10'000;   // Between starts of a container that failed.
    double list_qps = 100;       // Of podresources.
    double list_burst = 10;
    uint32_t seed = 1;
  };

  // Does not run yet.
  explicit ScriptedKubelet(Options options);
  ScriptedKubelet(const ScriptedKubelet&) = delete;
  ScriptedKubelet& operator=(const ScriptedKubelet&) = delete;
  ~ScriptedKubelet();

  enum class Death { kStopped, kKilled };  // A killed one leaves its sockets behind.
  Result<void> Start();
  void Stop(Death death = Death::kStopped);
  // Stop and Start. Pods come back with Readmit.
  Result<void> Restart(Death death = Death::kStopped);
  // Containers stop, sockets stay where they are, as after a power cut. Then Start.
  void PowerOff();
  // The API server's list of pods arrives after a start: all are admitted again, in order.
  void Readmit();
  // Serves kubelet.sock anew without a restart of the process, as kubelets since 1.34 can.
  Result<void> ListenAgain();

  // Admits the pod; its uid. Containers are not started.
  std::string AddPod(const PodSpec& spec);
  // One attempt to start what does not run, in order; whether all runs now (init: has run).
  bool StartPod(const std::string& uid);
  // Attempts until all runs.
  bool WaitRunning(const std::string& uid, const Deadline& deadline);
  // A container ended and is started again.
  Result<void> RestartContainer(const std::string& uid, const std::string& container);
  void DeletePod(const std::string& uid);
  PodStatus StatusOf(const std::string& uid) const;

  size_t Capacity(const std::string& resource);
  size_t Allocatable(const std::string& resource);
  bool WaitAllocatable(const std::string& resource, size_t count, const Deadline& deadline);
  // Register calls that succeeded, and streams that were opened, since this object was made.
  uint64_t registrations(const std::string& resource) const;
  uint64_t streams(const std::string& resource) const;
  // Messages of ListAndWatch.
  uint64_t lists(const std::string& resource) const;
  uint64_t pod_resources_calls() const;

  // The next Register answers with an error.
  void RefuseRegistrations(int count);
  // Register succeeds, but the stream is not opened, for the next `count`.
  void LoseStreams(int count);
  // Ends the stream of a resource from the kubelet's side.
  void DropStream(const std::string& resource);
  // Takes the resource for stopped, though its stream is open.
  void Forget(const std::string& resource);
  // See DeviceBook.
  void Leak(const std::string& resource, size_t count);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpushm::plugin::kubelet::testing
