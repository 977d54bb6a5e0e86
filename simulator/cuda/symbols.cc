// How callers find the functions: cuGetProcAddress by base name, and the names of errors.
#include "simulator/exported_api.h"
// It must be the first include, as exported_api.h explains.

#include <cctype>
#include <cstring>
#include <map>
#include <string>

#include "platform/driver/cuda_api.h"
#include "simulator/cuda/driver.h"
#include "simulator/cuda/error_names.h"

namespace {

struct Symbol {
  const char* name;
  void* address;
};

// The same list that CudaApi loads, so that the two cannot differ.
#define GPUSHM_SYMBOL(name) {#name, reinterpret_cast<void*>(&::name)},
const Symbol kSymbols[] = {GPUSHM_CUDA_FUNCTIONS(GPUSHM_SYMBOL){
    "cuGetProcAddress", reinterpret_cast<void*>(&::cuGetProcAddress_v2)}};
#undef GPUSHM_SYMBOL

struct ErrorText {
  const char* name;
  std::string text;
};

const std::map<int, ErrorText>& ErrorTexts() {
  static const auto* const texts = [] {
    auto* made = new std::map<int, ErrorText>();
    for (const auto& error : gpushm::sim::kErrorNames) {
      std::string text(error.name);
      text = text.substr(text.starts_with("CUDA_ERROR_") ? 11 : 5);
      for (char& c : text) {
        c = c == '_' ? ' ' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      }
      (*made)[error.number] = {error.name, text};
    }
    return made;
  }();
  return *texts;
}

}  // namespace

CUresult CUDAAPI cuGetErrorName(CUresult error, const char** pStr) {
  if (pStr == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = ErrorTexts().find(static_cast<int>(error));
  *pStr = found == ErrorTexts().end() ? nullptr : found->second.name;
  return *pStr == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char** pStr) {
  if (pStr == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = ErrorTexts().find(static_cast<int>(error));
  *pStr = found == ErrorTexts().end() ? nullptr : found->second.text.c_str();
  return *pStr == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetProcAddress_v2(const char* symbol, void** pfn, int cudaVersion, cuuint64_t,
                                     CUdriverProcAddressQueryResult* symbolStatus) {
  if (symbol == nullptr || pfn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *pfn = nullptr;
  for (const Symbol& known : kSymbols) {
    if (std::strcmp(known.name, symbol) == 0) *pfn = known.address;
  }
  // From 13.0 on, it is another function.
  if (std::strcmp("cuMemcpyBatchAsync", symbol) == 0 && cudaVersion >= 12080 &&
      cudaVersion < 13000) {
    *pfn = reinterpret_cast<void*>(&gpushm::sim::CopyBatch12080);
  }
  if (symbolStatus != nullptr) {
    *symbolStatus =
        *pfn == nullptr ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND : CU_GET_PROC_ADDRESS_SUCCESS;
  }
  return *pfn == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

// Tells CudaApi that this is not a GPU. The value counts incompatible changes of the state folder.
extern "C" __attribute__((visibility("default"))) const int gpushm_sim_version;
const int gpushm_sim_version = 1;
