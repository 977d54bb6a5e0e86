// Modules and kernels. No kernel of an application runs here. Those of gpushm are known by their
// names, and the processor does what they do.
#include <algorithm>
#include <cstring>
#include <string_view>

#include "platform/base/digest.h"
#include "platform/driver/digest_kernel.h"
#include "simulator/cuda/driver.h"

namespace gpushm::sim {
namespace {

CUresult Read(int device, uint64_t address, uint64_t size_bytes, void* to) {
  std::vector<Segment> segments;
  const CUresult result = ResolveOnDevice(device, address, size_bytes, false, &segments);
  if (result != CUDA_SUCCESS) return result;
  auto* at = static_cast<std::byte*>(to);
  for (const Segment& segment : segments) {
    at = std::copy_n(segment.data, segment.size_bytes, at);
  }
  return CUDA_SUCCESS;
}

CUresult AddDigest(int device, const digest_kernel::Range& range, digest_kernel::Sums* to) {
  constexpr uint64_t kAtOnce = 64 * digest_rule::kPieceBytes;
  std::vector<std::byte> bytes(std::min(range.bytes, kAtOnce));
  DigestSums sums;
  for (uint64_t at = 0; at < range.bytes; at += kAtOnce) {
    const std::span<std::byte> part = std::span(bytes).first(std::min(range.bytes - at, kAtOnce));
    const CUresult result = Read(device, range.address + at, part.size(), part.data());
    if (result != CUDA_SUCCESS) return result;
    sums.Add(at, part);
  }
  __atomic_fetch_add(&to->low, sums.halves[0], __ATOMIC_RELAXED);
  __atomic_fetch_add(&to->high, sums.halves[1], __ATOMIC_RELAXED);
  return CUDA_SUCCESS;
}

// gpushm_digest_g1 (digest_kernel.h).
Work DigestWork(void** arguments) {
  const auto ranges = *static_cast<const uint64_t*>(arguments[0]);
  const auto count = *static_cast<const uint32_t*>(arguments[1]);
  const auto sums = *static_cast<const uint64_t*>(arguments[3]);
  return [=](Engine& engine) {
    for (uint32_t i = 0; i < count; ++i) {
      digest_kernel::Range range;
      std::vector<Segment> target;
      CUresult result = Read(engine.device(), ranges + i * sizeof range, sizeof range, &range);
      if (result == CUDA_SUCCESS) {
        result = ResolveOnDevice(engine.device(), sums + i * sizeof(digest_kernel::Sums),
                                 sizeof(digest_kernel::Sums), true, &target);
      }
      if (result == CUDA_SUCCESS) {
        result = AddDigest(engine.device(), range,
                           reinterpret_cast<digest_kernel::Sums*>(target.front().data));
      }
      if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
  };
}

constexpr std::string_view kMachineCode =
    "\x7f"
    "ELF";

// The only module and the only function: handles that nothing else has.
CUmodule Module() { return reinterpret_cast<CUmodule>(uintptr_t{0x10}); }
CUfunction Function() { return reinterpret_cast<CUfunction>(uintptr_t{0x20}); }

}  // namespace
}  // namespace gpushm::sim

using gpushm::sim::CallWithContext;
using gpushm::sim::Context;
using gpushm::sim::Driver;
using gpushm::sim::Engine;
using EngineOf = std::shared_ptr<Engine>;

CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void* image) {
  return CallWithContext("cuModuleLoadData", [&](Driver&, Context&, const EngineOf&) {
    if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const std::string_view text(static_cast<const char*>(image));
    // It is for another GPU.
    if (text.starts_with(gpushm::sim::kMachineCode)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (text.find(gpushm::digest_kernel::kName) == std::string_view::npos) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    *module = gpushm::sim::Module();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuModuleUnload(CUmodule hmod) {
  return CallWithContext("cuModuleUnload", [&](Driver&, Context&, const EngineOf&) {
    return hmod == gpushm::sim::Module() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction* hfunc, CUmodule hmod, const char* name) {
  return CallWithContext("cuModuleGetFunction", [&](Driver&, Context&, const EngineOf&) {
    if (hfunc == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (hmod != gpushm::sim::Module()) return CUDA_ERROR_INVALID_HANDLE;
    if (std::strcmp(name, gpushm::digest_kernel::kName) != 0) return CUDA_ERROR_NOT_FOUND;
    *hfunc = gpushm::sim::Function();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                unsigned int gridDimZ, unsigned int blockDimX,
                                unsigned int blockDimY, unsigned int blockDimZ, unsigned int,
                                CUstream hStream, void** kernelParams, void**) {
  return CallWithContext("cuLaunchKernel", [&](Driver& driver, Context&, const EngineOf&) {
    if (f != gpushm::sim::Function()) return CUDA_ERROR_INVALID_HANDLE;
    if (kernelParams == nullptr || gridDimX == 0 || gridDimY != 1 || gridDimZ != 1 ||
        blockDimX != gpushm::digest_kernel::kThreads || blockDimY != 1 || blockDimZ != 1) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return gpushm::sim::Enqueue(driver, hStream, gpushm::sim::DigestWork(kernelParams));
  });
}
