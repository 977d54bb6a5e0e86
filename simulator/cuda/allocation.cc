// cuMemAlloc and the queries about an address.
#include <algorithm>

#include "simulator/cuda/driver.h"

namespace gpushm::sim {

CUresult MapWhole(Driver& driver, Context& context, std::shared_ptr<Allocation> allocation,
                  uint64_t visible_bytes, uint64_t* address) {
  const uint64_t reserved = allocation->backing->record().size_bytes;
  *address = driver.space().Reserve(reserved, 0, 0);
  if (*address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  Mapping mapping;
  mapping.address = *address;
  mapping.size_bytes = visible_bytes;
  mapping.allocation = std::move(allocation);
  mapping.vmm = false;
  // Every device with peer access can reach legacy memory; here all devices have it.
  for (int device = 0; device < driver.device_count(); ++device) {
    mapping.rights[device] = Rights::kReadWrite;
  }
  if (!driver.space().Map(mapping)) return CUDA_ERROR_UNKNOWN;
  const std::lock_guard lock(driver.mutex);
  context.owned[*address] = reserved;
  return CUDA_SUCCESS;
}

void UnmapWhole(Driver& driver, uint64_t address) {
  Mapping mapping;
  if (!driver.space().Find(address, &mapping)) return;
  const uint64_t reserved = mapping.allocation->backing->record().size_bytes;
  driver.space().Unmap(address, mapping.size_bytes);
  driver.space().Free(address, reserved);
}

namespace {

// Removes a legacy address from the context that owns it. False: none does.
bool Disown(Driver& driver, uint64_t address) {
  const std::lock_guard lock(driver.mutex);
  for (const auto& context : driver.contexts) {
    if (context->owned.erase(address) != 0) return true;
  }
  return false;
}

template <typename T>
CUresult Store(void* data, T value) {
  *static_cast<T*>(data) = value;
  return CUDA_SUCCESS;
}

CUresult Store(void* data, bool value) { return Store<int>(data, value ? 1 : 0); }

CUresult DescribeHost(Driver& driver, void* data, CUpointer_attribute attribute,
                      const HostRange& range) {
  void* const host = reinterpret_cast<void*>(static_cast<uintptr_t>(range.address));
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return Store(data, static_cast<unsigned>(CU_MEMORYTYPE_HOST));
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return Store(data, host);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return Store(data, static_cast<unsigned long long>(range.id));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return Store(data, static_cast<CUdeviceptr>(range.address));
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return Store(data, host);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return Store(data, static_cast<size_t>(range.size_bytes));
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return Store(data, range.device);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return Store(data, false);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return Store(data, true);
    case CU_POINTER_ATTRIBUTE_CONTEXT: {
      const std::lock_guard lock(driver.mutex);
      return Store(data, reinterpret_cast<CUcontext>(
                             driver.contexts[static_cast<size_t>(range.device)].get()));
    }
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUcontext ContextFor(Driver& driver, const Mapping& mapping) {
  const std::lock_guard lock(driver.mutex);
  for (const auto& context : driver.contexts) {
    if (context->owned.contains(mapping.address)) {
      return reinterpret_cast<CUcontext>(context.get());
    }
  }
  return nullptr;  // VMM memory belongs to no context.
}

CUresult DescribeDevice(Driver& driver, void* data, CUpointer_attribute attribute,
                        CUdeviceptr address, const Mapping& mapping) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return Store(data, ContextFor(driver, mapping));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return Store(data, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return Store(data, address);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return Store(data, static_cast<unsigned long long>(mapping.id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return Store(data, false);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return Store(data, std::max(mapping.allocation->device, 0));
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return Store(data, !mapping.vmm && !mapping.allocation->imported);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return Store(data, static_cast<CUdeviceptr>(mapping.address));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return Store(data, static_cast<size_t>(mapping.size_bytes));
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return Store(data, true);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return Store(data, 0ULL);  // The H200 says so even for memory with descriptors.
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return Store(data, static_cast<unsigned>(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE));
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace
}  // namespace gpushm::sim

using gpushm::sim::Allocation;
using gpushm::sim::Call;
using gpushm::sim::CallWithContext;
using gpushm::sim::Context;
using gpushm::sim::Driver;
using gpushm::sim::Engine;

CUresult CUDAAPI cuMemAlloc(CUdeviceptr* dptr, size_t bytesize) {
  return CallWithContext("cuMemAlloc", [&](Driver& driver, Context& context,
                                           const std::shared_ptr<Engine>&) {
    if (dptr == nullptr || bytesize == 0) return CUDA_ERROR_INVALID_VALUE;
    const gpushm::sim::Card& card = *driver.card(context.device);
    if (bytesize > card.memory_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    const uint64_t unit = gpushm::sim::kGranularityBytes;
    auto allocation = std::make_shared<Allocation>();
    allocation->device = context.device;
    const auto outcome =
        driver.state().Create(card, gpushm::sim::Kind::kLegacy, (bytesize + unit - 1) / unit * unit,
                              0, &allocation->backing);
    if (outcome != gpushm::sim::Outcome::kOk) return ToResult(outcome);
    uint64_t address = 0;
    const CUresult result = MapWhole(driver, context, std::move(allocation), bytesize, &address);
    if (result == CUDA_SUCCESS) *dptr = address;
    return result;
  });
}

CUresult CUDAAPI cuMemFree(CUdeviceptr dptr) {
  return CallWithContext("cuMemFree",
                         [&](Driver& driver, Context&, const std::shared_ptr<Engine>& engine) {
                           if (dptr == 0) return CUDA_SUCCESS;
                           gpushm::sim::Mapping mapping;
                           if (!driver.space().Find(dptr, &mapping) || mapping.address != dptr ||
                               mapping.vmm || mapping.allocation->imported) {
                             return CUDA_ERROR_INVALID_VALUE;
                           }
                           engine->WaitForAll();  // As the real one does.
                           if (!gpushm::sim::Disown(driver, dptr)) return CUDA_ERROR_INVALID_VALUE;
                           mapping.allocation = nullptr;
                           UnmapWhole(driver, dptr);
                           return CUDA_SUCCESS;
                         });
}

CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr* pbase, size_t* psize, CUdeviceptr dptr) {
  return Call("cuMemGetAddressRange", [&](Driver& driver) {
    gpushm::sim::Mapping mapping;
    if (!driver.space().Find(dptr, &mapping)) return CUDA_ERROR_NOT_FOUND;
    if (pbase != nullptr) *pbase = mapping.address;
    if (psize != nullptr) *psize = mapping.size_bytes;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  return Call("cuPointerGetAttribute", [&](Driver& driver) {
    if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
    gpushm::sim::HostRange range;
    if (driver.space().FindHost(ptr, &range)) {
      return gpushm::sim::DescribeHost(driver, data, attribute, range);
    }
    gpushm::sim::Mapping mapping;
    if (!driver.space().Find(ptr, &mapping)) return CUDA_ERROR_INVALID_VALUE;
    return gpushm::sim::DescribeDevice(driver, data, attribute, ptr, mapping);
  });
}
