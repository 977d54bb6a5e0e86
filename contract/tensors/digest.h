// The digest of a buffer's content (docs/design/digest.md), from those of its parts.
// Threads: pure functions; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contract/tensors/table.h"
#include "platform/base/digest.h"

namespace gpushm::tensors {

// A part of a buffer that has a digest of its own.
struct DigestPart {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// What has no tensors is divided into these; the last one may be smaller.
inline constexpr uint64_t kDigestBlockBytes = uint64_t{16} << 20;

// The parts of content without tensors, and its digest from theirs.
std::vector<DigestPart> RawParts(uint64_t content_bytes);
Digest RawDigest(uint64_t content_bytes, std::span<const Digest> parts);

// The same for tensors: one part for each, in the order of the table.
std::vector<DigestPart> TensorParts(const TensorTable& table);
Digest TensorsDigest(const TensorTable& table, std::span<const Digest> parts);

}  // namespace gpushm::tensors
