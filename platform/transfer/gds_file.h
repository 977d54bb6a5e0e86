// GPUDirect Storage: a file whose bytes the disk and the GPU exchange, with no copy in host memory.
//
// Invariants
//   (1) cuFile is not opened where nvidia-fs is missing: it would copy through the host instead,
//       and leave a log in the working folder.
//   (2) A file for which cuFile may copy through the host is refused.
//   (3) cuFile is open only while a GdsFile exists, unless the application has opened it.
//   (4) No memory stays registered between two calls.
//
// Threads: one, with a current context. cuFile starts some of its own.
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
  // `file` has O_DIRECT and stays open; `address` is where the first of `size_bytes` bytes belong.
  // kUnsupported: it cannot be had, what is missing, and what to do.
  static Result<GdsFile> Open(int file, CUdeviceptr address, uint64_t size_bytes);

  // Whole blocks of kDirectAlignBytes, at a multiple of it. Fewer than asked for: the file's end.
  Result<uint64_t> Read(CUdeviceptr to, uint64_t size_bytes, uint64_t offset) const;
  Result<void> Write(CUdeviceptr from, uint64_t size_bytes, uint64_t offset) const;

  GdsFile(GdsFile&& other) noexcept
      : api_(std::exchange(other.api_, nullptr)), handle_(other.handle_) {}
  GdsFile& operator=(GdsFile&&) = delete;
  ~GdsFile();

 private:
  explicit GdsFile(const cufile::Api& api) : api_(&api) {}
  const cufile::Api* api_;  // cuFile is open for as long as it is not null.
  cufile::Handle handle_ = nullptr;
};

// For a job that is complete but for its way: opens the file where that is kGds, which is
// kUnsupported if it cannot be had. With `try_gds` (FilePlan) makes the way kGds if it can.
Result<void> OpenGds(TransferJob& job, bool try_gds);

}  // namespace gpushm
