// Page-locked host memory. Its device address is its host address, as on x86 with UVA.
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "simulator/cuda/driver.h"

namespace gpushm::sim {
namespace {

constexpr long kTmpfsMagic = 0x01021994;
constexpr uint64_t kPageBytes = 4096;

// Shared pages of these files can be pinned, because they are in memory.
bool LivesInMemory(std::string path) {
  if (path.empty() || path.starts_with("/memfd:") || path.starts_with("/SYSV") ||
      path.starts_with("/dev/zero") || path.starts_with("anon_inode:") || path[0] == '[') {
    return true;
  }
  const std::string deleted = " (deleted)";
  if (path.ends_with(deleted)) path = path.substr(0, path.rfind('/'));
  struct statfs filesystem{};
  return statfs(path.c_str(), &filesystem) == 0 &&
         static_cast<long>(filesystem.f_type) == kTmpfsMagic;
}

// The engines of all active contexts.
std::vector<std::shared_ptr<Engine>> EnginesOf(Driver& driver) {
  std::vector<std::shared_ptr<Engine>> engines;
  const std::lock_guard lock(driver.mutex);
  for (const auto& context : driver.contexts) {
    if (context != nullptr && context->engine != nullptr) engines.push_back(context->engine);
  }
  return engines;
}

enum class Pinning {
  kRefused,
  kMemory,  // Pages that live in memory.
  kFile,    // Some are shared pages of a disk's file.
};

// How a GPU could pin all pages of the range: they are mapped, and writable unless read-only is
// requested. Shared pages of a disk's file can be pinned for reading only.
Pinning HowToPin(uint64_t address, uint64_t size_bytes, bool read_only) {
  Pinning how = Pinning::kMemory;
  std::ifstream maps("/proc/self/maps");
  uint64_t next = address;
  const uint64_t end = address + size_bytes;
  for (std::string line; next < end && std::getline(maps, line);) {
    uint64_t first = 0;
    uint64_t last = 0;
    char rights[5] = {};
    int path_at = 0;
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %4s %*s %*s %*s %n", &first, &last,
                    rights, &path_at) < 3 ||
        last <= next) {
      continue;
    }
    if (first > next || rights[0] != 'r') return Pinning::kRefused;
    if (!read_only && rights[1] != 'w') return Pinning::kRefused;
    const std::string path = path_at > 0 ? line.substr(static_cast<size_t>(path_at)) : "";
    if (rights[3] == 's' && !LivesInMemory(path)) how = Pinning::kFile;
    next = last;
  }
  if (how == Pinning::kFile && !read_only) return Pinning::kRefused;
  return next >= end ? how : Pinning::kRefused;
}

// The bytes of this process's memory, read without a signal where a file ends before its mapping.
// Null: there are no pages to pin.
std::shared_ptr<std::vector<std::byte>> Snapshot(uint64_t address, uint64_t size_bytes) {
  auto bytes = std::make_shared<std::vector<std::byte>>(size_bytes);
  for (uint64_t at = 0; at < size_bytes;) {
    const iovec to{bytes->data() + at, size_bytes - at};
    const iovec from{reinterpret_cast<void*>(static_cast<uintptr_t>(address + at)),
                     size_bytes - at};
    const ssize_t got = process_vm_readv(gettid(), &to, 1, &from, 1, 0);
    if (got <= 0) return nullptr;
    at += static_cast<uint64_t>(got);
  }
  return bytes;
}

uint64_t AddressOf(const void* pointer) {
  return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(pointer));
}

}  // namespace
}  // namespace gpushm::sim

using gpushm::sim::AddressOf;
using gpushm::sim::Call;
using gpushm::sim::CallWithContext;
using gpushm::sim::Context;
using gpushm::sim::Driver;
using gpushm::sim::Engine;
using gpushm::sim::HostRange;

CUresult CUDAAPI cuMemHostAlloc(void** pp, size_t bytesize, unsigned int Flags) {
  return CallWithContext(
      "cuMemHostAlloc", [&](Driver& driver, Context& context, const std::shared_ptr<Engine>&) {
        const unsigned known =
            CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
        if (pp == nullptr || bytesize == 0 || (Flags & ~known) != 0) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        const size_t size = (bytesize + gpushm::sim::kPageBytes - 1) / gpushm::sim::kPageBytes *
                            gpushm::sim::kPageBytes;
        void* const memory =
            mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
        driver.space().AddHost({.address = AddressOf(memory),
                                .size_bytes = size,
                                .allocated = true,
                                .device = context.device});
        *pp = memory;
        return CUDA_SUCCESS;
      });
}

CUresult CUDAAPI cuMemFreeHost(void* p) {
  return Call("cuMemFreeHost", [&](Driver& driver) {
    HostRange range;
    if (!driver.space().FindHost(AddressOf(p), &range) || range.address != AddressOf(p)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (const auto& engine : gpushm::sim::EnginesOf(driver)) engine->WaitForAll();
    if (!driver.space().RemoveHost(AddressOf(p), true)) return CUDA_ERROR_INVALID_VALUE;
    munmap(p, range.size_bytes);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemHostRegister(void* p, size_t bytesize, unsigned int Flags) {
  return CallWithContext("cuMemHostRegister", [&](Driver& driver, Context& context,
                                                  const std::shared_ptr<Engine>&) {
    const unsigned known =
        CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
    if (p == nullptr || bytesize == 0 || (Flags & ~known) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    HostRange range;
    range.address = AddressOf(p);
    range.size_bytes = bytesize;
    range.read_only = (Flags & CU_MEMHOSTREGISTER_READ_ONLY) != 0;
    range.device = context.device;
    const auto how = gpushm::sim::HowToPin(range.address, bytesize, range.read_only);
    if (how == gpushm::sim::Pinning::kRefused) return CUDA_ERROR_INVALID_VALUE;
    if (how == gpushm::sim::Pinning::kFile) {
      range.pinned = gpushm::sim::Snapshot(range.address, bytesize);
      if (range.pinned == nullptr) return CUDA_ERROR_INVALID_VALUE;
    }
    return driver.space().AddHost(range) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  });
}

CUresult CUDAAPI cuMemHostUnregister(void* p) {
  return Call("cuMemHostUnregister", [&](Driver& driver) {
    HostRange range;
    if (!driver.space().FindHost(AddressOf(p), &range) || range.address != AddressOf(p) ||
        range.allocated) {
      return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    for (const auto& engine : gpushm::sim::EnginesOf(driver)) engine->WaitForAll();
    return driver.space().RemoveHost(AddressOf(p), false) ? CUDA_SUCCESS
                                                          : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  });
}

CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr* pdptr, void* p, unsigned int Flags) {
  return CallWithContext(
      "cuMemHostGetDevicePointer", [&](Driver& driver, Context&, const std::shared_ptr<Engine>&) {
        HostRange range;
        if (pdptr == nullptr || Flags != 0 || !driver.space().FindHost(AddressOf(p), &range)) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        *pdptr = AddressOf(p);
        return CUDA_SUCCESS;
      });
}
