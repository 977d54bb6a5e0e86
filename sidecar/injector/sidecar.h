// The sidecar, what the containers that the injector adds have in common, and the places where they
// and the other containers meet.
//
// Threads: pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sidecar/injector/pod.h"

namespace gpushm::injector {

// The variable that makes CUDA number the GPUs of a pod that has several as gpushm does.
inline constexpr char kDeviceOrderVariable[] = "CUDA_DEVICE_ORDER";
inline constexpr char kDeviceOrder[] = "PCI_BUS_ID";
Json DeviceOrder();

// Of a container that uses what another pod of its claim declares: where it finds the socket, and
// for metrics, which pod and container it is in. A container that sets the first one gets none.
inline constexpr char kFolderVariable[] = "GPUSHM_DIR";
std::vector<Json> ClaimVariables(const std::string& container);

// The container passes Pod Security "restricted". `uid` is empty if the platform assigns it.
Json SidecarContainer(const Pod& pod, std::optional<int64_t> uid);

// What a container that the injector adds usually gets of its host.
struct HostResources {
  struct Amount {
    uint64_t request;
    uint64_t limit;
  };
  Amount cpu_millis;
  Amount memory_bytes;
};

// A container with the sidecar's image that passes Pod Security "restricted". It lacks a command, a
// user and mounts. `asked`: what the pod's annotations say of its resources.
Json AddedContainer(const Pod& pod, const std::string& name, const GpuRequest& gpu,
                    const annotations::ContainerResources& asked, const HostResources& usual);

// Makes it run as the user of the sidecar, with the groups that it needs for the pod's files.
void RunAs(const Pod& pod, std::optional<int64_t> uid, Json* container);

// The library for programs that use CUDA IPC, and the file that makes the dynamic linker load it
// into every program of the container.
std::vector<Json> CudaIpcMounts();

// A few MiB for sockets, in memory so that none survive a reboot of the node.
Json SocketVolume();
// Mounts a container's own subfolder, read-only, which is enough to connect.
Json SocketMount(const std::string& container);

// The volume's part for the folder of the pod's MPS daemon.
inline constexpr char kMpsPart[] = ".mps";  // No container's name begins with a dot.

}  // namespace gpushm::injector
