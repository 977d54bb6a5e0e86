#include "platform/driver/cuda_api.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>

#include "platform/base/per_process.h"

namespace gpushm {
namespace {

// cuGetProcAddress_v2 came with CUDA 12.0.
constexpr int kMinDriverVersion = 12000;
constexpr char kOldDriverRemedy[] = "install an NVIDIA driver of branch 525 or newer";

// Exists only in the simulated driver.
constexpr char kSimulatedMarker[] = "gpushm_sim_version";

// cuMemcpyBatchAsync with `failed` (cuda_api.h).
constexpr int kCopyBatchVersion = 12080;

// Replaces a function that the driver may lack.
template <typename... Arguments>
CUresult CUDAAPI NotSupported(Arguments...) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
template <typename... Arguments>
void UseNotSupported(CUresult(CUDAAPI*& function)(Arguments...)) {
  function = &NotSupported<Arguments...>;
}

}  // namespace

std::string DriverFolderFromEnvironment() {
  const char* folder = std::getenv("GPUSHM_DRIVER");
  return folder == nullptr ? "" : folder;
}

Result<const CudaApi*> CudaApi::Load(const std::string& folder) {
  struct Loaded {
    std::mutex mutex;
    std::map<std::string, std::unique_ptr<const CudaApi>> by_folder;
  };
  static constinit PerProcess<Loaded> loaded;  // Never destroyed: invariant (2).
  auto& [mutex, by_folder] = loaded.Get();
  const std::lock_guard lock(mutex);
  if (const auto found = by_folder.find(folder); found != by_folder.end()) {
    return found->second.get();
  }

  const std::string path = folder.empty() ? "libcuda.so.1" : folder + "/libcuda.so.1";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* reason = dlerror();
    return Fail(Code::kUnsupported,
                Concat("the CUDA driver cannot be loaded: ", reason ? reason : path),
                "run where an NVIDIA driver is visible (in a pod, request gpushm.io/attach), "
                "or set GPUSHM_DRIVER to the folder of the simulated driver");
  }
  const auto get_address =
      reinterpret_cast<decltype(&::cuGetProcAddress_v2)>(dlsym(library, "cuGetProcAddress_v2"));
  if (get_address == nullptr) {
    return Fail(Code::kUnsupported, Concat(path, " is older than CUDA 12.0"), kOldDriverRemedy);
  }

  std::unique_ptr<CudaApi> api(new CudaApi());
  api->simulated_ = dlsym(library, kSimulatedMarker) != nullptr;
  const char* missing = nullptr;
  const auto resolve = [&](const char* name, auto& function) {
    void* address = nullptr;
    CUdriverProcAddressQueryResult found{};
    const CUresult result =
        get_address(name, &address, kMinDriverVersion, CU_GET_PROC_ADDRESS_DEFAULT, &found);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
    if (result == CUDA_SUCCESS && address != nullptr) return;
    if (api->simulated_) {
      UseNotSupported(function);
    } else if (missing == nullptr) {
      missing = name;
    }
  };
#define GPUSHM_RESOLVE(name) resolve(#name, api->name);
  GPUSHM_CUDA_FUNCTIONS(GPUSHM_RESOLVE)
#undef GPUSHM_RESOLVE
  void* batch = nullptr;
  CUdriverProcAddressQueryResult found{};
  const CUresult has_batch = get_address("cuMemcpyBatchAsync", &batch, kCopyBatchVersion,
                                         CU_GET_PROC_ADDRESS_DEFAULT, &found);
  api->copy_batch = reinterpret_cast<CopyBatch>(batch);
  if (has_batch != CUDA_SUCCESS || batch == nullptr) UseNotSupported(api->copy_batch);
  if (missing != nullptr) {
    return Fail(Code::kUnsupported, Concat(path, " has no function ", missing), kOldDriverRemedy);
  }
  api->cuDriverGetVersion(&api->driver_version_);
  Dl_info info{};
  const bool located = dladdr(reinterpret_cast<void*>(get_address), &info) != 0;
  api->path_ = located && info.dli_fname != nullptr ? info.dli_fname : path;
  return by_folder.emplace(folder, std::move(api)).first->second.get();
}

Result<void> CudaApi::Init() const {
  const CUresult result = cuInit(0);
  if (result == CUDA_ERROR_NOT_INITIALIZED) {
    return Fail(Code::kForked,
                "cuInit: CUDA_ERROR_NOT_INITIALIZED (3): "
                "CUDA was initialised before fork() and does not work in the child",
                "start this process with exec instead (Python: the start method \"spawn\"), "
                "or fork before anything uses CUDA; gpushm uses it from the first attach on");
  }
  return Check(result, "cuInit");
}

Result<void> CudaApi::Check(CUresult result, std::string_view call) const {
  if (result == CUDA_SUCCESS) return {};
  const char* name = nullptr;
  const char* text = nullptr;
  cuGetErrorName(result, &name);
  cuGetErrorString(result, &text);
  const std::string what =
      Concat(call, ": ", name ? name : "unknown CUDA error", " (", static_cast<int>(result),
             text ? ", " : "", text ? text : "", ")");
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return Fail(Code::kExhausted, what, "free memory on this GPU, or request less");
    case CUDA_ERROR_NO_DEVICE:
      return Fail(Code::kNotFound, what,
                  "no GPU is visible here: request gpushm.io/attach (in a pod), "
                  "or check CUDA_VISIBLE_DEVICES and nvidia-smi");
    case CUDA_ERROR_NOT_SUPPORTED:
      return Fail(Code::kUnsupported, what,
                  "run gpushmctl doctor to see what this machine supports");
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
      return Fail(Code::kDeviceLost, what, "reset the GPU or drain the node");
    default:
      return Fail(Code::kDriver, what);
  }
}

}  // namespace gpushm
