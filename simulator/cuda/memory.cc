// Virtual memory management: cuMemCreate and its family. None of these functions needs a context.
#include "simulator/cuda/driver.h"

namespace gpushm::sim {
namespace {

constexpr uint32_t kPosixDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

CUresult CheckProperties(const Driver& driver, const CUmemAllocationProp* prop) {
  if (prop == nullptr || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  if (driver.card(prop->location.id) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const auto types = static_cast<uint32_t>(prop->requestedHandleTypes);
  // The real card claims to support fabric handles, but permits none without an IMEX channel.
  if ((types & CU_MEM_HANDLE_TYPE_FABRIC) != 0) return CUDA_ERROR_NOT_PERMITTED;
  return (types & ~kPosixDescriptor) == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

bool IsMultiple(uint64_t bytes) { return bytes != 0 && bytes % kGranularityBytes == 0; }

CUmemGenericAllocationHandle AddHandle(Driver& driver, std::shared_ptr<Allocation> allocation) {
  const std::lock_guard lock(driver.mutex);
  const CUmemGenericAllocationHandle handle = driver.next_handle += 16;
  driver.handles[handle] = {std::move(allocation), 1};
  return handle;
}

std::shared_ptr<Allocation> FindAllocation(Driver& driver, CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(driver.mutex);
  const auto found = driver.handles.find(handle);
  return found == driver.handles.end() ? nullptr : found->second.allocation;
}

CUresult CheckAccess(const Driver& driver, const CUmemAccessDesc& access, const Mapping& mapping) {
  if (access.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  const Card* card = driver.card(access.location.id);
  if (card == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const Card* owner = driver.machine().Find(mapping.allocation->backing->record().card);
  if (owner != nullptr && !card->CanReach(*owner)) return CUDA_ERROR_INVALID_DEVICE;
  switch (access.flags) {
    case CU_MEM_ACCESS_FLAGS_PROT_NONE:
    case CU_MEM_ACCESS_FLAGS_PROT_READ:
    case CU_MEM_ACCESS_FLAGS_PROT_READWRITE:
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace
}  // namespace gpushm::sim

using gpushm::sim::Allocation;
using gpushm::sim::Call;
using gpushm::sim::Driver;
using gpushm::sim::Mapping;
using gpushm::sim::Outcome;

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop,
                                               CUmemAllocationGranularity_flags) {
  return Call("cuMemGetAllocationGranularity", [&](Driver& driver) {
    if (granularity == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = gpushm::sim::CheckProperties(driver, prop);
    if (result == CUDA_SUCCESS) *granularity = gpushm::sim::kGranularityBytes;
    return result;
  });
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                             const CUmemAllocationProp* prop, unsigned long long flags) {
  return Call("cuMemCreate", [&](Driver& driver) {
    if (handle == nullptr || flags != 0 || !gpushm::sim::IsMultiple(size)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult result = gpushm::sim::CheckProperties(driver, prop);
    if (result != CUDA_SUCCESS) return result;
    driver.Delay("create");
    auto allocation = std::make_shared<Allocation>();
    allocation->device = prop->location.id;
    const Outcome outcome = driver.state().Create(
        *driver.card(prop->location.id), gpushm::sim::Kind::kVmm, size,
        static_cast<uint32_t>(prop->requestedHandleTypes), &allocation->backing);
    if (outcome != Outcome::kOk) return ToResult(outcome);
    *handle = gpushm::sim::AddHandle(driver, std::move(allocation));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
  return Call("cuMemRelease", [&](Driver& driver) {
    driver.Delay("release");
    std::shared_ptr<Allocation> last;  // Freed after the lock is released.
    const std::lock_guard lock(driver.mutex);
    const auto found = driver.handles.find(handle);
    if (found == driver.handles.end()) return CUDA_ERROR_INVALID_VALUE;
    if (--found->second.references > 0) return CUDA_SUCCESS;
    last = std::move(found->second.allocation);
    driver.handles.erase(found);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment,
                                     CUdeviceptr addr, unsigned long long flags) {
  return Call("cuMemAddressReserve", [&](Driver& driver) {
    const bool power_of_two = (alignment & (alignment - 1)) == 0;
    if (ptr == nullptr || flags != 0 || !gpushm::sim::IsMultiple(size) || !power_of_two) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *ptr = driver.space().Reserve(size, alignment, addr);
    return *ptr == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr ptr, size_t size) {
  return Call("cuMemAddressFree", [&](Driver& driver) {
    return driver.space().Free(ptr, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult CUDAAPI cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return Call("cuMemMap", [&](Driver& driver) {
    Mapping mapping;
    mapping.address = ptr;
    mapping.size_bytes = size;
    mapping.allocation = gpushm::sim::FindAllocation(driver, handle);
    const bool aligned = gpushm::sim::IsMultiple(size) && ptr % gpushm::sim::kGranularityBytes == 0;
    if (mapping.allocation == nullptr || offset != 0 || flags != 0 || !aligned ||
        size > mapping.allocation->backing->record().size_bytes) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    // As on the H200: an allocation is mapped as a whole.
    if (size != mapping.allocation->backing->record().size_bytes) return CUDA_ERROR_NOT_SUPPORTED;
    driver.Delay("map");
    return driver.space().Map(mapping) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr ptr, size_t size) {
  return Call("cuMemUnmap", [&](Driver& driver) {
    Mapping mapping;
    if (!driver.space().Find(ptr, &mapping) || !mapping.vmm) return CUDA_ERROR_INVALID_VALUE;
    mapping.allocation = nullptr;
    driver.Delay("unmap");
    return driver.space().Unmap(ptr, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc,
                                size_t count) {
  return Call("cuMemSetAccess", [&](Driver& driver) {
    Mapping mapping;
    if (desc == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    if (!driver.space().Find(ptr, &mapping) || !mapping.vmm) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
      const CUresult result = gpushm::sim::CheckAccess(driver, desc[i], mapping);
      if (result != CUDA_SUCCESS) return result;
      if (!driver.space().SetRights(ptr, size, desc[i].location.id,
                                    static_cast<gpushm::sim::Rights>(desc[i].flags))) {
        return CUDA_ERROR_INVALID_VALUE;
      }
    }
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                                CUdeviceptr ptr) {
  return Call("cuMemGetAccess", [&](Driver& driver) {
    Mapping mapping;
    if (flags == nullptr || location == nullptr || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
        !driver.space().Find(ptr, &mapping)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto rights = mapping.rights.find(location->id);
    *flags = rights == mapping.rights.end() ? 0 : static_cast<unsigned>(rights->second);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemExportToShareableHandle(void* shareableHandle,
                                              CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType handleType,
                                              unsigned long long flags) {
  return Call("cuMemExportToShareableHandle", [&](Driver& driver) {
    const auto allocation = gpushm::sim::FindAllocation(driver, handle);
    if (shareableHandle == nullptr || allocation == nullptr || flags != 0 || allocation->imported ||
        handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const gpushm::sim::Record& record = allocation->backing->record();
    if ((record.handle_types & gpushm::sim::kPosixDescriptor) == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    driver.Delay(driver.AnyContextActive() ? "export" : "export_no_context");
    const int fd = driver.state().OpenDescriptor(record);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    *static_cast<int*>(shareableHandle) = fd;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                                void* osHandle,
                                                CUmemAllocationHandleType shHandleType) {
  return Call("cuMemImportFromShareableHandle", [&](Driver& driver) {
    if (handle == nullptr || shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    driver.Delay("import");
    auto allocation = std::make_shared<Allocation>();
    allocation->imported = true;
    const int fd = static_cast<int>(reinterpret_cast<intptr_t>(osHandle));
    const Outcome outcome = driver.state().Adopt(fd, &allocation->backing);
    if (outcome != Outcome::kOk) return ToResult(outcome);
    allocation->device = driver.OrdinalOf(allocation->backing->record().card);
    *handle = gpushm::sim::AddHandle(driver, std::move(allocation));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                        CUmemGenericAllocationHandle handle) {
  return Call("cuMemGetAllocationPropertiesFromHandle", [&](Driver& driver) {
    const auto allocation = gpushm::sim::FindAllocation(driver, handle);
    if (prop == nullptr || allocation == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *prop = {};
    prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop->location.id = allocation->device;
    prop->requestedHandleTypes =
        static_cast<CUmemAllocationHandleType>(allocation->backing->record().handle_types);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
  return Call("cuMemRetainAllocationHandle", [&](Driver& driver) {
    Mapping mapping;
    const auto address = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(addr));
    if (handle == nullptr || !driver.space().Find(address, &mapping) || !mapping.vmm) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    {
      const std::lock_guard lock(driver.mutex);
      for (auto& [known, entry] : driver.handles) {
        if (entry.allocation != mapping.allocation) continue;
        ++entry.references;
        *handle = known;
        return CUDA_SUCCESS;
      }
    }
    *handle = gpushm::sim::AddHandle(driver, mapping.allocation);
    return CUDA_SUCCESS;
  });
}

// Only a kernel driver could make a dma-buf. So it is not supported, and the device attribute says
// so.
CUresult CUDAAPI cuMemGetHandleForAddressRange(void*, CUdeviceptr, size_t, CUmemRangeHandleType,
                                               unsigned long long) {
  return Call("cuMemGetHandleForAddressRange", [](Driver&) { return CUDA_ERROR_NOT_SUPPORTED; });
}
