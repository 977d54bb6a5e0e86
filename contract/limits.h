// Every fixed limit of gpushm, in one place; docs/reference/limits.md explains them. Reaching one
// is Code::kExhausted with the limit's name. It is never a crash and never a silent drop.
#pragma once

#include <cstddef>
#include <cstdint>

#include "platform/base/name.h"

namespace gpushm::limits {

// Buffers that a pod can have at one time: the slots of its registry.
inline constexpr uint32_t kBuffers = 4096;
// Clients connected to one broker, in all containers together.
inline constexpr uint32_t kClients = 256;
// Leases of one broker.
inline constexpr uint32_t kLeases = 65536;
// Bytes of a message between library and broker, without ancillary data.
inline constexpr size_t kMessageBytes = 4096;
// Descriptors in one message.
inline constexpr size_t kMessageDescriptors = 4;
// GPUs of one pod. Nodes with more than 16 GPUs are not made.
inline constexpr uint32_t kPodGpus = 16;
// Containers of a pod that a broker serves.
inline constexpr uint32_t kContainers = 128;
// Length of a buffer's name: a DNS label (RFC 1123), so that it is valid in an annotation's key.
inline constexpr size_t kNameBytes = kDnsLabelBytes;
// Bytes of one buffer. 2^46 is the virtual address space into which a mapping must fit.
inline constexpr uint64_t kBufferBytes = uint64_t{1} << 46;
// Generations of one buffer that may exist at the same time (old ones stay while attached).
inline constexpr uint32_t kGenerations = 16;
// Generations of all buffers of one broker. Each needs a descriptor, also in the plugin.
inline constexpr uint32_t kLinkGenerations = 8192;
// Names that the plugin keeps for one broker: those of buffers, and those of deleted buffers that
// are still attached.
inline constexpr uint32_t kLinkBuffers = kBuffers + kLinkGenerations;
// Processes whose leases the plugin keeps for one broker: clients, and processes that lost their
// connection and still have leases.
inline constexpr uint32_t kLinkClients = 1024;
// Cells of one sync page: participants of a barrier or ring, its writer included.
inline constexpr uint32_t kCells = 128;
// Frames of one ring or queue: the slots of its buffer.
inline constexpr uint32_t kFrames = 1024;
// Bytes of one sync page, and of all sync pages of a pod: host memory of its sidecar.
inline constexpr uint64_t kPageBytes = 1 << 20;
inline constexpr uint64_t kAllPagesBytes = 8 << 20;
// Bytes of the description of one generation, and of all descriptions of a pod: host memory of the
// containers that wrote them, each rounded up to 4 KiB.
inline constexpr uint64_t kDescriptionBytes = 64 << 20;
inline constexpr uint64_t kAllDescriptionsBytes = 256 << 20;
// Allocations in which the memory of one offer lies, and those of all offers of a broker together.
// Each needs a descriptor, also in the plugin. The first is 5 GiB in torch's blocks of 20 MiB.
inline constexpr uint32_t kBlocks = 256;
inline constexpr uint32_t kAllBlocks = 2048;
// Bytes of the reason why a buffer has no content: one sentence.
inline constexpr size_t kReasonBytes = 255;
// Attempts of a registry reader before Code::kContended.
inline constexpr int kReadAttempts = 8;
// Tensors of one description, and of all files of one load. Large models have below 10^5.
inline constexpr uint32_t kTensors = 1'000'000;
// Dimensions of a tensor. NumPy allowed 32 up to its version 1.
inline constexpr uint32_t kTensorRank = 32;
// Pairs of metadata in one description or tensor file.
inline constexpr uint32_t kMetadataPairs = 65536;
// Bytes of a safetensors file's header, as in the format's reference implementation, and of an
// index of shards.
inline constexpr uint64_t kSafetensorsHeaderBytes = 100'000'000;
// Files that one index of shards may name; each is open during the load.
inline constexpr uint32_t kTensorFiles = 4096;

}  // namespace gpushm::limits
