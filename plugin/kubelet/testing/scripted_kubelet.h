// A kubelet for tests: behaves towards a device plugin as kubelets 1.28 to 1.37 do, without
// containers. It serves the real interfaces at real sockets in a folder of the test, so the plugin
// can be in the same process or in another one.
//
// It imitates the kubelet in these points; see the documentation of device plugins and
// kubernetes/kubernetes, pkg/kubelet/cm/devicemanager:
//   - Register calls back (dial, GetDevicePluginOptions) before it answers, and ignores the
//     request's own options. There is one ListAndWatch per registration. Messages have at most 4
//     MiB.
//   - The end of a stream makes every device unhealthy immediately.
//   - Pods are admitted one after the other, containers in the order of the spec, and a container's
//     resources in random order. A failed Allocate ends the pod.
//   - PreStartContainer is called before each start of a container, and repeated after a failure.
//   - A start removes the sockets from the folder and reads back who has what. Capacity is zero
//     until plugins register. Running containers are not allocated again.
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
#include "plugin/kubelet/testing/device_manager.h"

namespace gpushm::plugin::kubelet::testing {

enum class Role {
  kSidecar,  // An init container with restartPolicy Always.
  kApp,
};

struct ContainerSpec {
  std::string name;
  Role role = Role::kApp;
  std::map<std::string, size_t> limits;  // Extended resources.
};

struct PodSpec {
  binding::Pod pod;
  std::vector<ContainerSpec> containers;  // Sidecars first.
};

struct ContainerStatus {
  enum class State { kWaiting, kRunning };
  State state = State::kWaiting;
  std::string message;             // Why it waits: the text of its pod's event.
  std::map<std::string, Ids> ids;  // Keyed by resource.
  std::vector<Answer> answers;     // Allocate's answers for it.
};

struct PodStatus {
  bool failed = false;  // Permanently: UnexpectedAdmissionError.
  std::string message;
  std::map<std::string, ContainerStatus> containers;
};

class ScriptedKubelet {
 public:
  struct Options {
    std::string folder;  // Of device plugins; created if it does not exist.
    std::string kubelet_socket = "kubelet.sock";
    std::string pod_resources_socket;  // Path; empty: not served.
    // Up to 1.36, plugins are identified by their resource alone, so the end of an old stream
    // disconnects the new registration. Later, they are identified by resource and socket, and a
    // connected one is refused.
    bool known_by_resource_alone = false;
    // Up to about 1.25, a start removes every file in the folder, not only sockets.
    bool wipes_all_files = false;
    // From the end of a stream until the kubelet notices it: goroutines are not scheduled
    // immediately.
    int64_t notice_ms = 0;
    int64_t dial_ms = 10'000;
    int64_t pre_start_ms = 30'000;
    int64_t retry_ms = 10'000;  // Between starts of a container that failed.
    double list_qps = 100;      // Limit of podresources.
    double list_burst = 10;
    uint32_t seed = 1;
  };

  // Created stopped.
  explicit ScriptedKubelet(Options options);
  ScriptedKubelet(const ScriptedKubelet&) = delete;
  ScriptedKubelet& operator=(const ScriptedKubelet&) = delete;
  ~ScriptedKubelet();

  enum class Death { kStopped, kKilled };  // A killed one leaves its sockets behind.
  Result<void> Start();
  void Stop(Death death = Death::kStopped);
  // Stop and Start. Pods return with Readmit.
  Result<void> Restart(Death death = Death::kStopped);
  // Containers stop and sockets stay, as after a power cut. Start follows.
  void PowerOff();
  // The API server's list of pods arrives after a start: all are admitted again, in order.
  void Readmit();
  // Serves kubelet.sock again without a restart of the process, as kubelets since 1.34 can.
  Result<void> ListenAgain();

  // Admits the pod and returns its uid. Does not start containers.
  std::string AddPod(const PodSpec& spec);
  // Attempts once to start what does not run, in order; true if all run now.
  bool StartPod(const std::string& uid);
  // Repeats StartPod until all containers run.
  bool WaitRunning(const std::string& uid, const Deadline& deadline);
  // Restarts a container that has ended.
  Result<void> RestartContainer(const std::string& uid, const std::string& container);
  void DeletePod(const std::string& uid);
  PodStatus StatusOf(const std::string& uid) const;

  size_t Capacity(const std::string& resource);
  size_t Allocatable(const std::string& resource);
  bool WaitAllocatable(const std::string& resource, size_t count, const Deadline& deadline);
  // Number of successful Register calls and opened streams since this object was created.
  uint64_t registrations(const std::string& resource) const;
  uint64_t streams(const std::string& resource) const;
  uint64_t pod_resources_calls() const;

  // The next Register answers with an error.
  void RefuseRegistrations(int count);
  // The next `count` Register calls succeed, but their stream is not opened.
  void LoseStreams(int count);
  // Ends the stream of a resource from the kubelet's side.
  void DropStream(const std::string& resource);
  // Treats the resource as stopped, although its stream is open.
  void Forget(const std::string& resource);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpushm::plugin::kubelet::testing
