#include "tests/simulation/driver.h"

#include <cuda.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "tests/simulation/world.h"

namespace gpushm::simulation {
namespace {

constexpr uint64_t kGpuBytes = uint64_t{1} << 30;
constexpr uint64_t kGranularity = 2 << 20;

std::string memory_folder;
uint64_t fails_one_in = 0;

CUresult Init(unsigned) { return CUDA_SUCCESS; }
CUresult DriverVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
CUresult DeviceCount(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}
CUresult DeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult DeviceUuid(CUuuid* uuid, CUdevice) {
  constexpr std::array<unsigned char, 16> kBytes{0x67, 0x70, 0x75, 0x73, 0x68, 0x6d, 0, 0,
                                                 0,    0,    0,    0,    0,    0,    0, 1};
  std::memcpy(uuid->bytes, kBytes.data(), kBytes.size());
  return CUDA_SUCCESS;
}
CUresult DeviceName(char* name, int bytes, CUdevice) {
  std::strncpy(name, "Simulated", static_cast<size_t>(bytes));
  return CUDA_SUCCESS;
}
CUresult TotalMemory(size_t* bytes, CUdevice) {
  *bytes = kGpuBytes;
  return CUDA_SUCCESS;
}
CUresult Attribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 0;
  return CUDA_SUCCESS;
}
CUresult Granularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = kGranularity;
  return CUDA_SUCCESS;
}
// The handle is a descriptor, and one more than its number.
CUresult Create(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp*,
                unsigned long long) {
  if (World::Current()->Chance(fails_one_in)) return CUDA_ERROR_OUT_OF_MEMORY;
  const int memory = MakeMemory(bytes);
  if (memory < 0) return CUDA_ERROR_UNKNOWN;
  *handle = static_cast<CUmemGenericAllocationHandle>(memory) + 1;
  return CUDA_SUCCESS;
}
CUresult Export(void* descriptor, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType,
                unsigned long long) {
  const int copy = fcntl(static_cast<int>(handle) - 1, F_DUPFD_CLOEXEC, 0);
  std::memcpy(descriptor, &copy, sizeof copy);
  return copy < 0 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}
CUresult Release(CUmemGenericAllocationHandle handle) {
  close(static_cast<int>(handle) - 1);
  return CUDA_SUCCESS;
}
CUresult ErrorText(CUresult, const char** text) {
  *text = "an error of the simulation";
  return CUDA_SUCCESS;
}

struct Function {
  std::string_view name;
  void* address;
};

CUresult FindFunction(const char* name, void** address, int, cuuint64_t,
                      CUdriverProcAddressQueryResult*) {
  static const std::array kFunctions = {
      Function{"cuInit", reinterpret_cast<void*>(&Init)},
      Function{"cuDriverGetVersion", reinterpret_cast<void*>(&DriverVersion)},
      Function{"cuGetErrorName", reinterpret_cast<void*>(&ErrorText)},
      Function{"cuGetErrorString", reinterpret_cast<void*>(&ErrorText)},
      Function{"cuDeviceGetCount", reinterpret_cast<void*>(&DeviceCount)},
      Function{"cuDeviceGet", reinterpret_cast<void*>(&DeviceGet)},
      Function{"cuDeviceGetUuid", reinterpret_cast<void*>(&DeviceUuid)},
      Function{"cuDeviceGetName", reinterpret_cast<void*>(&DeviceName)},
      Function{"cuDeviceTotalMem", reinterpret_cast<void*>(&TotalMemory)},
      Function{"cuDeviceGetAttribute", reinterpret_cast<void*>(&Attribute)},
      Function{"cuMemGetAllocationGranularity", reinterpret_cast<void*>(&Granularity)},
      Function{"cuMemCreate", reinterpret_cast<void*>(&Create)},
      Function{"cuMemExportToShareableHandle", reinterpret_cast<void*>(&Export)},
      Function{"cuMemRelease", reinterpret_cast<void*>(&Release)},
  };
  *address = nullptr;
  for (const Function& function : kFunctions) {
    if (function.name == name) *address = function.address;
  }
  return *address != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // namespace

void SetMemoryFolder(const std::string& folder) { memory_folder = folder; }
void SetAllocationsFail(uint64_t one_in) { fails_one_in = one_in; }

int MakeMemory(uint64_t bytes) {
  const int memory = open(memory_folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (memory >= 0 && ftruncate(memory, static_cast<off_t>(bytes)) != 0) std::abort();
  return memory;
}

void* DriverLibrary() { return &memory_folder; }

void* DriverSymbol(const char* name) {
  const std::string_view wanted = name;
  // Both exist, and CudaApi::Load calls the first one only.
  return wanted == "cuGetProcAddress_v2" || wanted == "gpushm_sim_version"
             ? reinterpret_cast<void*>(&FindFunction)
             : nullptr;
}

}  // namespace gpushm::simulation
