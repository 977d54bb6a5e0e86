// cuFile, NVIDIA's library for GPUDirect Storage, loaded at run time. The part that gpushm uses is
// declared here, after NVIDIA's cuFile API reference, so that no build needs its header.
//
// Threads: as for CudaApi: immutable after Load, and never unloaded.
#pragma once

#include <cuda.h>
#include <sys/types.h>

#include <array>
#include <cstddef>

#include "platform/base/status.h"

namespace gpushm::cufile {

// CUfileError_t
struct Error {
  int error;  // CUfileOpError; 0: none.
  CUresult cuda;
};
inline constexpr int kAlreadyOpen = 5026;  // CU_FILE_DRIVER_ALREADY_OPEN

// CUfileDrvProps_t
struct Properties {
  unsigned major_version;  // Of the nvidia-fs kernel module.
  unsigned minor_version;
  size_t poll_threshold_size;
  size_t max_direct_io_size;
  unsigned status_flags;              // One bit for each supported file system and kind of disk.
  unsigned control_flags;             // kAllowCompatMode and others.
  std::array<std::byte, 232> others;  // More fields; the struct has grown before.
};
// Bits of control_flags (CUfileDriverControlFlags_t) that allow copies through host memory.
inline constexpr unsigned kAllowCompatMode = 1u << 1;
inline constexpr unsigned kPosixMode = 1u << 2;
inline constexpr unsigned kFallbackMode = 1u << 4;

// CUFileBoolConfigParameter_t
inline constexpr int kParameterAllowCompatMode = 1;
inline constexpr int kParameterForceCompatMode = 2;

// CUfileDescr_t
struct Descriptor {
  int type;
  union {
    int fd;
    void* pointer;
  } handle;
  const void* operations;
};
inline constexpr int kTypeDescriptor = 1;  // CU_FILE_HANDLE_TYPE_OPAQUE_FD

using Handle = void*;

struct Api {
  Error (*DriverOpen)() = nullptr;
  Error (*DriverClose)() = nullptr;
  Error (*DriverGetProperties)(Properties*) = nullptr;
  Error (*HandleRegister)(Handle*, Descriptor*) = nullptr;
  void (*HandleDeregister)(Handle) = nullptr;
  Error (*BufRegister)(const void*, size_t, int flags) = nullptr;
  Error (*BufDeregister)(const void*) = nullptr;
  // Number of bytes; -1 with errno; or a negative CUfileOpError.
  ssize_t (*Read)(Handle, void*, size_t, off_t file_offset, off_t buffer_offset) = nullptr;
  ssize_t (*Write)(Handle, const void*, size_t, off_t file_offset, off_t buffer_offset) = nullptr;
  // Null in older versions.
  Error (*SetParameterBool)(int, bool) = nullptr;
  Error (*GetParameterBool)(int, bool*) = nullptr;
  // The path at which nvidia-fs is visible.
  const char* (*DriverPath)() = nullptr;
  // cuFile may copy through the host, and needs no nvidia-fs then.
  bool may_copy = false;

  // Loads libcufile.so.0 from the folder that GPUSHM_CUFILE names, otherwise from the loader's
  // search path. Starts nothing. kUnsupported: it is missing or too old. GPUSHM_CUFILE_COMPAT=1
  // sets may_copy: only for tests of this code on a machine without nvidia-fs.
  static Result<const Api*> Load();
};

}  // namespace gpushm::cufile
