#include "library.h"

#include <dlfcn.h>
#include <nanobind/nanobind.h>

namespace gpushm::python {
namespace {

Functions functions;
bool loaded = false;

}  // namespace

std::string Load(const std::string& file) {
  // RTLD_LOCAL: another copy of the library in this process keeps its own symbols.
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return dlerror();
  Functions found;
  std::string missing;
  const auto find = [&](const char* name) {
    void* const symbol = dlsym(handle, name);
    if (symbol == nullptr) missing += (missing.empty() ? "it lacks " : ", ") + std::string(name);
    return symbol;
  };
#define GPUSHM_PYTHON_FIND(name) \
  found.name##_ = reinterpret_cast<decltype(found.name##_)>(find("gpushm_" #name));
  GPUSHM_PYTHON_FUNCTIONS(GPUSHM_PYTHON_FIND)
#undef GPUSHM_PYTHON_FIND
  if (!missing.empty()) {
    dlclose(handle);
    return missing;
  }
  functions = found;
  loaded = true;
  return "";
}

std::string LoadedFile() {
  Dl_info info;
  if (!loaded || dladdr(reinterpret_cast<void*>(functions.version_), &info) == 0) return "";
  return info.dli_fname;
}

const Functions& Api() {
  if (!loaded) throw nanobind::import_error("libgpushm is not loaded: import gpushm first");
  return functions;
}

}  // namespace gpushm::python
