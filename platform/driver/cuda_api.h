// The CUDA driver API, loaded at run time: nothing in gpushm links libcuda.
//
// Invariants
//   (1) A CudaApi exists only if every function of the table was found, so callers never check for
//       null. Functions that the simulated driver of an earlier release lacks answer NOT_SUPPORTED.
//   (2) The library is never unloaded: driver threads and mappings may outlive any owner.
//   (3) Nothing here makes a context. cuInit runs once, at the first Init().
//
// Threads: a CudaApi is immutable after Load; its functions are as thread-safe as the driver's.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "platform/base/status.h"

namespace gpushm {

// The driver functions that gpushm uses, by the base name that cuGetProcAddress takes. All are
// requested with the ABI of CUDA 12.0, which cuda.h of 12.x and 13.x declares for them. Where
// cuda.h renames one by a macro (cuGraphInstantiate), the table has the driver's own name.
// clang-format off
#define GPUSHM_CUDA_FUNCTIONS(X)                                                                  \
  X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuGetErrorString) X(cuDeviceGet)            \
  X(cuDeviceGetCount) X(cuDeviceGetName) X(cuDeviceGetUuid) X(cuDeviceTotalMem)                   \
  X(cuDeviceGetAttribute) X(cuDeviceGetPCIBusId) X(cuDeviceCanAccessPeer)                         \
  X(cuDeviceGetP2PAttribute)                                                                      \
  X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuDevicePrimaryCtxGetState)          \
  X(cuCtxSetCurrent) X(cuCtxGetCurrent) X(cuCtxGetDevice) X(cuCtxPushCurrent) X(cuCtxPopCurrent)  \
  X(cuCtxSynchronize) X(cuMemGetInfo) X(cuMemAlloc) X(cuMemFree) X(cuMemHostAlloc)                \
  X(cuMemFreeHost) X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemHostGetDevicePointer)       \
  X(cuMemGetAddressRange) X(cuPointerGetAttribute) X(cuMemcpyHtoD) X(cuMemcpyDtoH)                \
  X(cuMemcpyDtoD) X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync) X(cuMemcpyDtoDAsync) X(cuMemsetD8)    \
  X(cuMemsetD32) X(cuMemsetD8Async) X(cuMemsetD32Async) X(cuMemCreate) X(cuMemRelease)            \
  X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess)          \
  X(cuMemGetAccess) X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle)             \
  X(cuMemGetAllocationGranularity) X(cuMemGetAllocationPropertiesFromHandle)                      \
  X(cuMemRetainAllocationHandle) X(cuMemGetHandleForAddressRange) X(cuStreamCreate)               \
  X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamQuery) X(cuStreamWaitEvent)                 \
  X(cuStreamWaitValue32) X(cuStreamWaitValue64) X(cuStreamWriteValue32) X(cuStreamWriteValue64)   \
  X(cuLaunchHostFunc) X(cuStreamBeginCapture) X(cuStreamEndCapture)         \
  X(cuStreamIsCapturing) X(cuGraphInstantiateWithFlags) X(cuGraphLaunch) X(cuGraphDestroy)        \
  X(cuGraphExecDestroy) X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery)       \
  X(cuEventSynchronize) X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle) X(cuIpcCloseMemHandle)         \
  X(cuIpcGetEventHandle) X(cuIpcOpenEventHandle) X(cuModuleLoadData) X(cuModuleUnload)            \
  X(cuModuleGetFunction) X(cuLaunchKernel)
// clang-format on

// CUmemcpyAttributes, which cuda.h before 12.8 lacks.
struct CopyAttributes {
  static constexpr int kInStreamOrder = 1;  // CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
  int source_order;
  CUmemLocation source;  // Both for managed memory only.
  CUmemLocation target;
  unsigned flags;
};
// cuMemcpyBatchAsync as CUDA 12.8 made it. 13.0 has another function of that name, without
// `failed`, and drivers have both.
using CopyBatch = CUresult(CUDAAPI*)(CUdeviceptr* targets, CUdeviceptr* sources, size_t* sizes,
                                     size_t count, CopyAttributes* attributes,
                                     size_t* first_of_attributes, size_t attribute_count,
                                     size_t* failed, CUstream stream);

class CudaApi {
 public:
  // The function table: api.cuMemCreate(...) is the driver's cuMemCreate.
#define GPUSHM_DECLARE(name) decltype(&::name) name = nullptr;
  GPUSHM_CUDA_FUNCTIONS(GPUSHM_DECLARE)
#undef GPUSHM_DECLARE
  // NOT_SUPPORTED from a driver before CUDA 12.8.
  CopyBatch copy_batch = nullptr;

  // Loads libcuda.so.1 once per process and folder, and returns the same table from then on; the
  // table lives as long as the process. `folder`: contains libcuda.so.1; empty: the loader's search
  // path. Fails with kUnsupported if the driver is missing, too old (before CUDA 12.0, driver 525)
  // or lacks a function, and says which.
  static Result<const CudaApi*> Load(const std::string& folder);

  // Calls cuInit. Cheap after the first time. kNotFound: no GPU is visible to this process;
  // kDeviceLost and kDriver otherwise.
  Result<void> Init() const;

  // CUDA version of the driver: 13000 means 13.0.
  int driver_version() const { return driver_version_; }
  // True for libcuda-sim.so: its times are not those of a GPU, and it runs only the digest's
  // kernel.
  bool simulated() const { return simulated_; }
  const std::string& path() const { return path_; }

  // Turns a driver's answer into a Result; `call` names the function and its purpose.
  Result<void> Check(CUresult result, std::string_view call) const;

 private:
  CudaApi() = default;

  int driver_version_ = 0;
  bool simulated_ = false;
  std::string path_;
};

// The only place that reads the environment to choose the driver: GPUSHM_DRIVER, a folder with
// libcuda.so.1 and libnvidia-ml.so.1. Unset or empty: the driver that the loader finds.
std::string DriverFolderFromEnvironment();

}  // namespace gpushm
