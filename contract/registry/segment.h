// A registry's segment: made and sealed by its writer, checked and mapped by its readers.
#pragma once

#include <cstdint>

#include "contract/registry/layout.h"
#include "platform/base/sealed_memory.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm::registry {

// A memfd of that size, its pages allocated (no SIGBUS later), mapped for writing, then sealed:
// from there on nobody, not even root, can make another writable mapping, write or resize it.
Result<WritableSegment> MakeSealedSegment(uint64_t bytes);

// Maps a received segment for reading. Refuses what could kill a reader or change under it:
// anything but a memfd on tmpfs with all four seals, its pages allocated, of a size in bounds.
Result<Mapping> MapSealedSegment(const UniqueFd& fd);

// The header's constants for a segment of today's layout.
Result<HeaderConstants> NewHeaderConstants(uint32_t slot_count, uint64_t generation_floor);

// The header of `bytes` mapped bytes, copied and validated: kIncompatible if it is of a layout that
// we do not speak, kCorrupt if it contradicts itself or the size.
Result<HeaderConstants> ValidateHeader(const void* address, uint64_t bytes);

}  // namespace gpushm::registry
