// The container that the injector adds, and where it and the others meet.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sidecar/injector/plan.h"

namespace gpushm::injector {

inline constexpr char kMemoryResource[] = "gpushm.io/memory";
inline constexpr char kAttachResource[] = "gpushm.io/attach";

// The annotations as the broker reads them from its environment.
std::string BuffersVariable(const PodView& pod);
// And back, from a sidecar. kNotFound: it has none. kInvalidArgument: it cannot be read.
Result<config::PodSpec> ReadBuffersVariable(const Container& sidecar);

// Passes Pod Security "restricted". `uid`: none where the platform assigns it.
Json SidecarContainer(const PodView& pod, const Plan& plan, const Settings& settings,
                      std::optional<int64_t> uid);

// A few MiB for sockets; in memory, so that a node's reboot leaves none.
Json SocketVolume();
// Of a container's own subfolder, read-only: to connect one needs no more.
Json SocketMount(const std::string& container);
// A program that loads and saves through the broker, for containers without a GPU.
Json ToolMount();

}  // namespace gpushm::injector
