// How many bytes of its GPUs a pod takes, and how many device IDs that is. The webhook (for the
// resource request), the broker (for its pools) and tests all use these functions, so their results
// agree.
//
// A pod reserves the same on each of its GPUs, namely what the fullest one needs, because device
// IDs belong to no GPU: the plugin could not tell unequal parts apart.
//
// Every sum saturates at UINT64_MAX, which no GPU has, instead of wrapping around.
#pragma once

#include <cstdint>

#include "contract/annotations/annotations.h"
#include "platform/base/status.h"

namespace gpushm::annotations {

// The result of cuMemGetAllocationGranularity on every GPU seen so far; the driver rounds up to it.
inline constexpr uint64_t kGranularityBytes = uint64_t{2} << 20;
// The loader of a file has a context while it loads (about 523 MiB on an H200).
inline constexpr uint64_t kLoaderBytes = uint64_t{1} << 30;

// The server of MPS took 66 MiB on an H100 (driver 580.159.04).
inline constexpr uint64_t kMpsBytes = uint64_t{128} << 20;

// `granularity` is a power of two.
uint64_t RoundUp(uint64_t bytes, uint64_t granularity);

// Bytes of all generations of the buffers on one GPU, and of pool-extra: what the broker may
// allocate there.
uint64_t PoolBytes(const PodSpec& pod, uint32_t gpu = 0, uint64_t granularity = kGranularityBytes);

// The number of the GPU whose pool is the largest; the first of several.
uint32_t FullestGpu(const PodSpec& pod, uint64_t granularity = kGranularityBytes);

// What the pod takes of each of its GPUs: the largest pool, the private bytes of the containers,
// kLoaderBytes for each file of the GPU that has most of them, and kMpsBytes with MPS.
uint64_t GpuBytes(const PodSpec& pod, uint64_t granularity = kGranularityBytes);

// What the pod takes of its node: GpuBytes of each GPU.
uint64_t NodeBytes(const PodSpec& pod, uint64_t granularity = kGranularityBytes);

// The most that a container may use of one GPU: its private bytes, and all that it may attach
// there.
uint64_t ContainerBytes(const PodSpec& pod, std::string_view container, uint32_t gpu = 0,
                        uint64_t granularity = kGranularityBytes);

// Rounds up once. `unit_bytes` > 0.
uint64_t Units(uint64_t bytes, uint64_t unit_bytes);

// The units of all of the pod's GPUs: the same number of each, so it is a multiple of the number of
// GPUs. At least one of each, because a sidecar always has its GPUs, even if only signals are
// shared.
uint64_t PodUnits(const PodSpec& pod, uint64_t unit_bytes);

// Fails with kExhausted if `pod` needs more of a GPU than `card_bytes`, the memory that a GPU can
// give. The message shows both numbers, and names the GPU with `card`.
Result<void> CheckFits(const PodSpec& pod, uint64_t card_bytes, std::string_view card,
                       uint64_t granularity = kGranularityBytes);

}  // namespace gpushm::annotations
