// Every fixed limit of gpushm, in one place; docs/reference/limits.md explains them. Reaching one
// is Code::kExhausted with the limit's name, never a crash and never a silent drop.
#pragma once

#include <cstddef>
#include <cstdint>

#include "platform/base/name.h"

namespace gpushm::limits {

// Buffers a pod can have at one time: the slots of its registry.
inline constexpr uint32_t kBuffers = 4096;
// Clients connected to one broker, all containers together.
inline constexpr uint32_t kClients = 256;
// Leases of one broker.
inline constexpr uint32_t kLeases = 65536;
// A message of the protocol between library and broker, ancillary data not counted.
inline constexpr size_t kMessageBytes = 4096;
// Descriptors in one message.
inline constexpr size_t kMessageDescriptors = 4;
// Containers of a pod that a broker serves.
inline constexpr uint32_t kContainers = 128;
// Length of a buffer's name: a DNS label (RFC 1123), so that it fits an annotation's key.
inline constexpr size_t kNameBytes = kDnsLabelBytes;
// Length of a pod's name: a DNS subdomain as Kubernetes has it. Not ours to choose.
inline constexpr size_t kPodNameBytes = kDnsSubdomainBytes;
// Bytes of one buffer. 2^46 is the virtual address space that a mapping must fit in.
inline constexpr uint64_t kBufferBytes = uint64_t{1} << 46;
// Generations of one buffer that may live at the same time (the old ones while attached).
inline constexpr uint32_t kGenerations = 16;
// Generations of one broker, of all its buffers together: a descriptor each, in the plugin as well.
inline constexpr uint32_t kLinkGenerations = 8192;
// Names that the plugin keeps for one broker: a buffer's, and those of deleted ones that are still
// attached.
inline constexpr uint32_t kLinkBuffers = kBuffers + kLinkGenerations;
// Processes whose leases the plugin keeps for one broker: clients, and those that lost their
// connection and still hold something.
inline constexpr uint32_t kLinkClients = 1024;
// Cells of one page: participants of a barrier or ring, its writer included.
inline constexpr uint32_t kCells = 128;
// Frames of one ring or queue: slots of its buffer.
inline constexpr uint32_t kFrames = 1024;
// Bytes of one page, and of all pages of a pod: host memory of its sidecar.
inline constexpr uint64_t kPageBytes = 1 << 20;
inline constexpr uint64_t kAllPagesBytes = 8 << 20;
// Attempts of a registry reader before Code::kContended.
inline constexpr int kReadAttempts = 8;
// Requests of one connection that the broker holds back before it stops reading from it.
inline constexpr int kQueuedRequests = 16;

}  // namespace gpushm::limits
