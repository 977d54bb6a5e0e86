// How many bytes of a GPU a pod takes, and how many device IDs that is. The webhook (for the
// resource request), the broker (for its pool) and tests all use these functions, so their results
// agree.
//
// Every sum saturates at UINT64_MAX, which no GPU has, instead of wrapping around.
#pragma once

#include <cstdint>

#include "contract/annotations/annotations.h"
#include "platform/base/status.h"

namespace gpushm::config {

// The result of cuMemGetAllocationGranularity on every GPU seen so far; the driver rounds up to it.
inline constexpr uint64_t kGranularityBytes = uint64_t{2} << 20;
// A process that loads needs a context (about 523 MiB on an H200) and staging buffers.
inline constexpr uint64_t kLoaderBytes = uint64_t{1} << 30;

// The server of MPS took 66 MiB on an H100 (driver 580.159.04).
inline constexpr uint64_t kMpsBytes = uint64_t{128} << 20;

// `granularity` is a power of two.
uint64_t RoundUp(uint64_t bytes, uint64_t granularity);

// Bytes of all generations of the buffers and of pool-extra: what the broker may allocate.
uint64_t PoolBytes(const PodSpec& pod, uint64_t granularity = kGranularityBytes);

// What the pod takes of a GPU: PoolBytes, the private bytes of the containers, kLoaderBytes if
// something is loaded, and kMpsBytes with MPS.
uint64_t NodeBytes(const PodSpec& pod, uint64_t granularity = kGranularityBytes);

// The most that a container may use: its private bytes, and all that it may attach.
uint64_t ContainerBytes(const PodSpec& pod, std::string_view container,
                        uint64_t granularity = kGranularityBytes);

// Rounds up once. `unit_bytes` > 0.
uint64_t Units(uint64_t bytes, uint64_t unit_bytes);

// Fails with kExhausted if `pod` needs more than `card_bytes`, the memory that a GPU can give. The
// message shows both numbers and names the GPU with `card`.
Result<void> CheckFits(const PodSpec& pod, uint64_t card_bytes, std::string_view card,
                       uint64_t granularity = kGranularityBytes);

}  // namespace gpushm::config
