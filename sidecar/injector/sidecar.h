// The containers that the injector adds, and the places where it and the other containers meet.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sidecar/injector/claim.h"
#include "sidecar/injector/plan.h"

namespace gpushm::injector {

inline constexpr char kMemoryResource[] = "gpushm.io/memory";
inline constexpr char kAttachResource[] = "gpushm.io/attach";
inline constexpr char kExclusiveResource[] = "gpushm.io/exclusive";
inline constexpr char kGpusResource[] = "gpushm.io/gpus";
// Asks for GPUs with NVLink between each two of them.
inline constexpr char kNvlinkResource[] = "gpushm.io/nvlink";

// What a container says to get its part of the pod's GPUs.
struct GpuRequest {
  // Extended resources and their numbers. With several GPUs, the broker also requests one
  // gpushm.io/gpus for each, from which the plugin learns how many they are.
  std::vector<std::pair<std::string, uint64_t>> resources;
  std::vector<Json> claims;  // Entries of resources.claims.
};
GpuRequest RequestOf(const Plan& plan, Asker asker);

// The variable that makes CUDA number the GPUs of a pod that has several as gpushm does.
inline constexpr char kDeviceOrderVariable[] = "CUDA_DEVICE_ORDER";
inline constexpr char kDeviceOrder[] = "PCI_BUS_ID";
Json DeviceOrder();

// Of a container that uses what another pod of its claim declares: where it finds the socket, and
// for metrics, which pod and container it is in. A container that sets the first one gets none.
inline constexpr char kFolderVariable[] = "GPUSHM_DIR";
std::vector<Json> ClaimVariables(const std::string& container);

// The annotations in the form in which the broker reads them from its environment.
std::string BuffersVariable(const PodView& pod);
// Reads them back from a sidecar. Fails with kNotFound if the sidecar has none, and with
// kInvalidArgument if they cannot be read.
Result<annotations::PodSpec> ReadBuffersVariable(const Container& sidecar);

// The container passes Pod Security "restricted". `uid` is empty if the platform assigns it.
Json SidecarContainer(const PodView& pod, const Plan& plan, const Settings& settings,
                      std::optional<int64_t> uid);

// The container that loads the file of a buffer. `uid`: as which the sidecar runs.
Json LoaderContainer(const PodView& pod, const Plan& plan, const annotations::BufferSpec& buffer,
                     const Settings& settings, std::optional<int64_t> uid);

// The container with the MPS daemon, for a plan with `mps`. It passes Pod Security "restricted" if
// the uid is known, and "baseline" otherwise.
Json MpsContainer(const PodView& pod, const Plan& plan, const Settings& settings);
// The init container of a pod that runs under its claim's daemon: it waits for the daemon, because
// a process that starts before runs without MPS, and nobody tells it.
Json MpsWaitContainer(const PodView& pod, const Plan& plan, const Settings& settings);
// What the environment of a container must say to use it; empty without MPS.
std::vector<std::pair<std::string, std::string>> MpsVariables(const Plan& plan,
                                                              const std::string& container);
// Clients see the folder read-only, which is enough to connect.
Json MpsMount(bool writable);

// The library for programs that use CUDA IPC, and the file that makes the dynamic linker load it
// into every program of the container.
std::vector<Json> CudaIpcMounts();

// A few MiB for sockets, in memory so that none survive a reboot of the node.
Json SocketVolume();
// Mounts a container's own subfolder, read-only, which is enough to connect.
Json SocketMount(const std::string& container);

}  // namespace gpushm::injector
