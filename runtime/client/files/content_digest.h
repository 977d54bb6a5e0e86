// The digest of content (docs/design/digest.md): of a GPU's memory, and of what files would bring.
//
// Threads: any.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "platform/base/digest.h"
#include "platform/base/status.h"
#include "platform/transfer/device_digest.h"
#include "runtime/client/files/open_file.h"

namespace gpushm::client {

struct DeviceContent {
  CUdeviceptr address = 0;
  uint64_t size_bytes = 0;     // Of the buffer.
  uint64_t content_bytes = 0;  // Of them, if there is no table.
  // Tensors, or any other description, which does not count.
  std::span<const std::byte> description{};
};

// Under the context for which `digests` was made.
Result<Digest> DigestOf(const DeviceContent& content, DeviceDigest* digests);

// Reads all of it. A stream is read to its end. The files must not have O_DIRECT.
Result<Digest> DigestOf(const LoadSource& source);

// Of the attached generation. Reads the GPU's memory. An unpublished generation keeps the digest,
// for those who will see it.
Result<Digest> DigestOfContent(Attachment* attachment, const Wait& wait);

}  // namespace gpushm::client
