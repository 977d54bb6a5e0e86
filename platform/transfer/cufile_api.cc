#include "platform/transfer/cufile_api.h"

#include <dlfcn.h>

#include <compare>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

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

struct Choice {
  std::string folder;
  bool may_copy;
  auto operator<=>(const Choice&) const = default;
};

// The only place that reads the environment for cuFile.
Choice ChoiceFromEnvironment() {
  const char* const folder = std::getenv("GPUSHM_CUFILE");
  const char* const compat = std::getenv("GPUSHM_CUFILE_COMPAT");
  return {.folder = folder == nullptr ? "" : folder,
          .may_copy = compat != nullptr && std::string_view(compat) == "1"};
}

Result<std::unique_ptr<const Api>> Open(const Choice& choice) {
  const std::string& folder = choice.folder;
  const std::string path = folder.empty() ? "libcufile.so.0" : folder + "/libcufile.so.0";
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const reason = dlerror();
    return Fail(Code::kUnsupported,
                Concat("GPUDirect Storage: cuFile cannot be loaded: ", reason ? reason : path),
                "install NVIDIA's libcufile, or set GPUSHM_CUFILE to its folder");
  }
  auto api = std::make_unique<Api>();
  api->may_copy = choice.may_copy;
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
    std::map<Choice, std::unique_ptr<const Api>> by_choice;
  };
  static constinit PerProcess<Loaded> loaded;
  auto& [mutex, by_choice] = loaded.Get();
  const Choice choice = ChoiceFromEnvironment();
  const std::lock_guard lock(mutex);
  if (const auto found = by_choice.find(choice); found != by_choice.end()) {
    return found->second.get();
  }
  Result<std::unique_ptr<const Api>> api = Open(choice);
  if (!api) return std::unexpected(api.error());
  return by_choice.emplace(choice, std::move(*api)).first->second.get();
}

}  // namespace gpushm::cufile
