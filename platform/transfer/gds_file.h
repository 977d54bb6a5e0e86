// GPUDirect Storage: the disk and the GPU exchange the bytes of a file without a copy in host
// memory.
//
// Invariants
//   (1) cuFile is not opened if nvidia-fs is missing: it would copy through the host instead, and
//       leave a log in the working folder.
//   (2) A file for which cuFile may copy through the host is refused. GPUSHM_CUFILE_COMPAT=1 lifts
//       (1) and (2) for tests.
//   (3) cuFile is open only while a GdsFile exists, unless the application has opened it.
//   (4) No memory stays registered between two calls.
//
// Threads: one, with a current context. cuFile starts threads of its own.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <utility>

#include "platform/base/status.h"
#include "platform/transfer/cufile_api.h"
#include "platform/transfer/transfer_engine.h"

namespace gpushm {

class GdsFile {
 public:
  // `file` has O_DIRECT and stays open. `address` is the destination of the first of `size_bytes`
  // bytes. kUnsupported: GPUDirect Storage is not available; the text says what is missing and what
  // to do.
  static Result<GdsFile> Open(int file, CUdeviceptr address, uint64_t size_bytes);

  // Moves whole blocks of kDirectAlignBytes, aligned to that size. Fewer bytes than requested mean
  // the end of the file.
  Result<uint64_t> Read(CUdeviceptr to, uint64_t size_bytes, uint64_t offset) const;
  Result<void> Write(CUdeviceptr from, uint64_t size_bytes, uint64_t offset) const;

  GdsFile(GdsFile&& other) noexcept
      : api_(std::exchange(other.api_, nullptr)), handle_(other.handle_) {}
  GdsFile& operator=(GdsFile&&) = delete;
  ~GdsFile();

 private:
  explicit GdsFile(const cufile::Api& api) : api_(&api) {}
  const cufile::Api* api_;  // cuFile is open while this is not null.
  cufile::Handle handle_ = nullptr;
};

// For a job that is complete except for its method. If the method is kGds, opens the file, or fails
// with kUnsupported. With `try_gds` (FilePlan), changes the method to kGds if possible.
Result<void> OpenGds(TransferJob& job, bool try_gds);

}  // namespace gpushm
