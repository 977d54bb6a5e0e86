#include "platform/driver/nvml_api.h"

#include <dlfcn.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>

namespace gpushm {

Result<const NvmlApi*> NvmlApi::Load(const std::string& folder) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<const NvmlApi>>* loaded =
      new std::map<std::string, std::unique_ptr<const NvmlApi>>();  // Never destroyed.
  const std::lock_guard lock(mutex);
  if (const auto found = loaded->find(folder); found != loaded->end()) return found->second.get();

  const std::string path = folder.empty() ? "libnvidia-ml.so.1" : folder + "/libnvidia-ml.so.1";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* reason = dlerror();
    return Fail(Code::kUnsupported, Concat("NVML cannot be loaded: ", reason ? reason : path),
                "run where an NVIDIA driver is visible, or set GPUSHM_DRIVER");
  }
  std::unique_ptr<NvmlApi> api(new NvmlApi());
  const char* missing = nullptr;
  const auto resolve = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && missing == nullptr) missing = name;
  };
#define GPUSHM_RESOLVE(name) resolve(#name, api->name);
  GPUSHM_NVML_FUNCTIONS(GPUSHM_RESOLVE)
#undef GPUSHM_RESOLVE
#define GPUSHM_RESOLVE_OPTIONAL(name) \
  api->name = reinterpret_cast<decltype(api->name)>(dlsym(library, #name));
  GPUSHM_NVML_OPTIONAL_FUNCTIONS(GPUSHM_RESOLVE_OPTIONAL)
#undef GPUSHM_RESOLVE_OPTIONAL
  if (missing != nullptr) {
    return Fail(Code::kUnsupported, Concat(path, " has no function ", missing),
                "install an NVIDIA driver of branch 525 or newer");
  }
  const Result<void> initialised = api->Check(api->nvmlInit_v2(), "nvmlInit");
  if (!initialised) return std::unexpected(initialised.error());
  return loaded->emplace(folder, std::move(api)).first->second.get();
}

nvmlReturn_t NvmlApi::Restart() const {
  const std::unique_lock lock(in_use_, std::chrono::milliseconds(kRestartWaitMs));
  if (!lock) return NVML_ERROR_IN_USE;
  // Load made the only initialisation in this process, so one shutdown ends it.
  if (initialised_) nvmlShutdown();
  ++restarts_;
  const nvmlReturn_t result = nvmlInit_v2();
  initialised_ = result == NVML_SUCCESS;
  return result;
}

Result<void> NvmlApi::Check(nvmlReturn_t result, std::string_view call) const {
  if (result == NVML_SUCCESS) return {};
  const std::string what = Concat(call, ": ", nvmlErrorString(result));
  switch (result) {
    case NVML_ERROR_NOT_SUPPORTED:
      return Fail(Code::kUnsupported, what);
    case NVML_ERROR_NOT_FOUND:
      return Fail(Code::kNotFound, what);
    case NVML_ERROR_GPU_IS_LOST:
    case NVML_ERROR_RESET_REQUIRED:
      return Fail(Code::kDeviceLost, what, "reset the GPU or drain the node");
    case NVML_ERROR_TIMEOUT:
      return Fail(Code::kTimeout, what);
    default:
      return Fail(Code::kDriver, what);
  }
}

}  // namespace gpushm
