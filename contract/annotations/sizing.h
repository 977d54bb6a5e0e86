// How many bytes of a GPU a pod takes, and how many device IDs that is. Used by the webhook (the
// resource request), the broker (its pool) and tests; all agree because they ask here.
//
// Every sum saturates at UINT64_MAX, which no card has, instead of wrapping around.
#pragma once

#include <cstdint>

#include "contract/annotations/annotations.h"
#include "platform/base/status.h"

namespace gpushm::config {

// What cuMemGetAllocationGranularity answers on every GPU so far; the driver rounds to it.
inline constexpr uint64_t kGranularityBytes = uint64_t{2} << 20;
// A process that loads makes a context (about 523 MiB on an H200) and staging buffers.
inline constexpr uint64_t kLoaderBytes = uint64_t{1} << 30;

// `granularity` is a power of two.
uint64_t RoundUp(uint64_t bytes, uint64_t granularity);

// Bytes of the buffers, all generations, and pool-extra: what the broker may allocate.
uint64_t PoolBytes(const PodSpec& pod, uint64_t granularity = kGranularityBytes);

// PoolBytes, private bytes of the containers, and the loader where something loads: what the pod
// takes of a GPU.
uint64_t NodeBytes(const PodSpec& pod, uint64_t granularity = kGranularityBytes);

// Rounded up once. `unit_bytes` > 0.
uint64_t Units(uint64_t bytes, uint64_t unit_bytes);

// kExhausted, naming what is asked and what is there, where `pod` is more than a card that has
// `card_bytes` to give; `card` names it in the message.
Result<void> CheckFits(const PodSpec& pod, uint64_t card_bytes, std::string_view card,
                       uint64_t granularity = kGranularityBytes);

}  // namespace gpushm::config
