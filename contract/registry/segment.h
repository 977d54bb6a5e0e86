// A registry's segment: the writer makes and seals it; readers check and map it.
#pragma once

#include <cstdint>

#include "contract/registry/layout.h"
#include "platform/base/sealed_memory.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm::registry {

// Makes a memfd of that size, allocates its pages (so that no SIGBUS can follow), maps it for
// writing and seals it. Afterwards nobody, not even root, can map it for writing again, write it or
// resize it.
Result<WritableSegment> MakeSealedSegment(uint64_t bytes);

// Maps a received segment for reading. Accepts only a memfd on tmpfs with all four seals, allocated
// pages, and a size within bounds. Anything else could kill a reader or change under it.
Result<Mapping> MapSealedSegment(const UniqueFd& fd);

// The header's constants for a segment of the current layout.
Result<HeaderConstants> NewHeaderConstants(uint32_t slot_count, uint64_t generation_floor);

// Copies and validates the header of `bytes` mapped bytes: kIncompatible if this code does not
// support its layout, kCorrupt if it contradicts itself or the size.
Result<HeaderConstants> ValidateHeader(const void* address, uint64_t bytes);

}  // namespace gpushm::registry
