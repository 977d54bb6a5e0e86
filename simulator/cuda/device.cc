// Devices and their attributes.
#include <cstdio>
#include <cstring>

#include "simulator/cuda/driver.h"

using gpushm::sim::Call;
using gpushm::sim::Card;
using gpushm::sim::Driver;

CUresult CUDAAPI cuDriverGetVersion(int* driverVersion) {
  if (driverVersion == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *driverVersion = 13000;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetCount(int* count) {
  return Call("cuDeviceGetCount", [&](Driver& driver) {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = driver.device_count();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  return Call("cuDeviceGet", [&](Driver& driver) {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (driver.card(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetName(char* name, int len, CUdevice dev) {
  return Call("cuDeviceGetName", [&](Driver& driver) {
    const Card* card = driver.card(dev);
    if (card == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (name == nullptr || len <= 0) return CUDA_ERROR_INVALID_VALUE;
    std::snprintf(name, static_cast<size_t>(len), "%s", card->name.c_str());
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice dev) {
  return Call("cuDeviceGetUuid", [&](Driver& driver) {
    const Card* card = driver.card(dev);
    if (card == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(uuid->bytes, card->uuid.data(), card->uuid.size());
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceTotalMem(size_t* bytes, CUdevice dev) {
  return Call("cuDeviceTotalMem", [&](Driver& driver) {
    const Card* card = driver.card(dev);
    if (card == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *bytes = card->memory_bytes;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char* pciBusId, int len, CUdevice dev) {
  return Call("cuDeviceGetPCIBusId", [&](Driver& driver) {
    const Card* card = driver.card(dev);
    if (card == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (pciBusId == nullptr || len < 13) return CUDA_ERROR_INVALID_VALUE;
    std::snprintf(pciBusId, static_cast<size_t>(len), "0000:%02X:00.0", card->gpu_index + 1);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceCanAccessPeer(int* canAccessPeer, CUdevice dev, CUdevice peerDev) {
  return Call("cuDeviceCanAccessPeer", [&](Driver& driver) {
    const Card* card = driver.card(dev);
    const Card* peer = driver.card(peerDev);
    if (card == nullptr || peer == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (canAccessPeer == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *canAccessPeer = dev != peerDev && card->CanReach(*peer) ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attrib,
                                         CUdevice srcDevice, CUdevice dstDevice) {
  return Call("cuDeviceGetP2PAttribute", [&](Driver& driver) {
    const Card* card = driver.card(srcDevice);
    const Card* peer = driver.card(dstDevice);
    if (card == nullptr || peer == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (value == nullptr || srcDevice == dstDevice) return CUDA_ERROR_INVALID_VALUE;
    const bool reaches = card->CanReach(*peer);
    switch (attrib) {
      case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
        *value = reaches ? 1 : 0;
        return CUDA_SUCCESS;
      case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
        *value = reaches && card->nvlink && peer->nvlink ? 1 : 0;
        return CUDA_SUCCESS;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

CUresult CUDAAPI cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev) {
  return Call("cuDeviceGetAttribute", [&](Driver& driver) {
    const Card* card = driver.card(dev);
    if (card == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (pi == nullptr || attrib <= 0 || attrib >= CU_DEVICE_ATTRIBUTE_MAX) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    switch (attrib) {
      case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
      case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
      case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
      case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
      case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
      case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
        *pi = 1;
        break;
      // The real card returns 1 and then permits none; the suites must rely on neither.
      case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
        *pi = 1;
        break;
      case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
        *pi = 3;
        break;
      case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *pi = 9;
        break;
      case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *pi = 132;
        break;
      case CU_DEVICE_ATTRIBUTE_MPS_ENABLED:
        *pi = driver.mps() ? 1 : 0;
        break;
      case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        *pi = static_cast<int>(card->gpu_index) + 1;
        break;
      default:
        *pi = 0;
        break;
    }
    return CUDA_SUCCESS;
  });
}
