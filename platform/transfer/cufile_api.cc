#include "platform/transfer/cufile_api.h"

#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "platform/base/per_process.h"

namespace gpushm::cufile {
namespace {

// Only the tests' libcufile has it: the path that represents nvidia-fs.
constexpr char kFakeDriverPath[] = "gpushm_fake_nvidia_fs";

template <typename Function>
bool Resolve(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

Result<std::unique_ptr<const Api>> Open(const std::string& folder) {
  const std::string path = folder.empty() ? "libcufile.so.0" : folder + "/libcufile.so.0";
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const reason = dlerror();
    return Fail(Code::kUnsupported,
                Concat("GPUDirect Storage: cuFile cannot be loaded: ", reason ? reason : path),
                "install NVIDIA's libcufile, or set GPUSHM_CUFILE to its folder");
  }
  auto api = std::make_unique<Api>();
  // Since CUDA 12.0, cufile.h defines cuFileDriverClose as this name.
  const bool complete = Resolve(library, "cuFileDriverOpen", api->DriverOpen) &&
                        Resolve(library, "cuFileDriverClose_v2", api->DriverClose) &&
                        Resolve(library, "cuFileDriverGetProperties", api->DriverGetProperties) &&
                        Resolve(library, "cuFileHandleRegister", api->HandleRegister) &&
                        Resolve(library, "cuFileHandleDeregister", api->HandleDeregister) &&
                        Resolve(library, "cuFileBufRegister", api->BufRegister) &&
                        Resolve(library, "cuFileBufDeregister", api->BufDeregister) &&
                        Resolve(library, "cuFileRead", api->Read) &&
                        Resolve(library, "cuFileWrite", api->Write);
  if (!complete) {
    return Fail(Code::kUnsupported, Concat("GPUDirect Storage: ", path, " lacks functions"),
                "install the libcufile of CUDA 12.0 or newer");
  }
  Resolve(library, "cuFileSetParameterBool", api->SetParameterBool);
  Resolve(library, "cuFileGetParameterBool", api->GetParameterBool);
  if (!Resolve(library, kFakeDriverPath, api->DriverPath)) {
    api->DriverPath = [] { return "/proc/driver/nvidia-fs"; };
  }
  return api;
}

}  // namespace

Result<const Api*> Api::Load() {
  struct Loaded {
    std::mutex mutex;
    std::map<std::string, std::unique_ptr<const Api>> by_folder;
  };
  static constinit PerProcess<Loaded> loaded;
  auto& [mutex, by_folder] = loaded.Get();
  const char* const named = std::getenv("GPUSHM_CUFILE");
  const std::string folder = named == nullptr ? "" : named;
  const std::lock_guard lock(mutex);
  if (const auto found = by_folder.find(folder); found != by_folder.end())
    return found->second.get();
  Result<std::unique_ptr<const Api>> api = Open(folder);
  if (!api) return std::unexpected(api.error());
  return by_folder.emplace(folder, std::move(*api)).first->second.get();
}

}  // namespace gpushm::cufile
