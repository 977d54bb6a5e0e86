#include "platform/driver/device.h"

#include <cstdio>
#include <cstring>

namespace gpushm {
namespace {

CUmemAllocationProp PropertiesFor(const CudaApi& api, CUdevice device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  // Network cards and GPUDirect Storage can register no other memory. Requesting it where it is not
  // supported makes cuMemCreate fail.
  int supported = 0;
  if (api.cuDeviceGetAttribute(&supported,
                               CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                               device) == CUDA_SUCCESS) {
    properties.allocFlags.gpuDirectRDMACapable = supported != 0 ? 1 : 0;
  }
  return properties;
}

}  // namespace

std::string GpuUuid::ToString() const {
  std::string text = "GPU-";
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", bytes[i]);
    text += digits;
  }
  return text;
}

Result<std::vector<DeviceInfo>> ListDevices(const CudaApi& api) {
  if (auto ready = api.Init(); !ready) return std::unexpected(ready.error());
  int count = 0;
  if (auto r = api.Check(api.cuDeviceGetCount(&count), "cuDeviceGetCount"); !r) {
    return std::unexpected(r.error());
  }
  std::vector<DeviceInfo> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    DeviceInfo info;
    CUuuid uuid{};
    char name[128] = {};
    size_t total_bytes = 0;
    size_t granularity = 0;
    if (auto r = api.Check(api.cuDeviceGet(&info.device, ordinal), "cuDeviceGet"); !r) {
      return std::unexpected(r.error());
    }
    if (auto r = api.Check(api.cuDeviceGetUuid(&uuid, info.device), "cuDeviceGetUuid"); !r) {
      return std::unexpected(r.error());
    }
    if (auto r = api.Check(api.cuDeviceGetName(name, sizeof name, info.device), "cuDeviceGetName");
        !r) {
      return std::unexpected(r.error());
    }
    if (auto r = api.Check(api.cuDeviceTotalMem(&total_bytes, info.device), "cuDeviceTotalMem");
        !r) {
      return std::unexpected(r.error());
    }
    const CUmemAllocationProp properties = PropertiesFor(api, info.device);
    if (auto r = api.Check(api.cuMemGetAllocationGranularity(&granularity, &properties,
                                                             CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                           "cuMemGetAllocationGranularity");
        !r) {
      return std::unexpected(r.error());
    }
    std::memcpy(info.uuid.bytes.data(), uuid.bytes, sizeof uuid.bytes);
    info.name = name;
    info.total_bytes = total_bytes;
    info.granularity = granularity;
    devices.push_back(std::move(info));
  }
  return devices;
}

Result<PeerAccess> PeerAccessOf(const CudaApi& api, CUdevice peer, CUdevice home) {
  int can = 0;
  if (auto done = api.Check(api.cuDeviceCanAccessPeer(&can, peer, home), "cuDeviceCanAccessPeer");
      !done) {
    return std::unexpected(done.error());
  }
  if (can == 0) return PeerAccess::kNone;
  // NVLink carries atomics; PCIe between GPUs does not.
  int atomics = 0;
  if (auto done =
          api.Check(api.cuDeviceGetP2PAttribute(
                        &atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, peer, home),
                    "cuDeviceGetP2PAttribute");
      !done) {
    return std::unexpected(done.error());
  }
  return atomics != 0 ? PeerAccess::kNvLink : PeerAccess::kPcie;
}

Result<DeviceMemory> DeviceMemory::Create(const CudaApi& api, CUdevice device,
                                          uint64_t size_bytes) {
  const CUmemAllocationProp properties = PropertiesFor(api, device);
  CUmemGenericAllocationHandle handle = 0;
  if (auto r = api.Check(api.cuMemCreate(&handle, size_bytes, &properties, 0),
                         Concat("cuMemCreate of ", size_bytes, " bytes"));
      !r) {
    return std::unexpected(r.error());
  }
  return DeviceMemory(api, handle);
}

Result<DeviceMemory> DeviceMemory::Import(const CudaApi& api, int fd) {
  CUmemGenericAllocationHandle handle = 0;
  void* const os_handle = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
  if (auto r = api.Check(api.cuMemImportFromShareableHandle(
                             &handle, os_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                         "cuMemImportFromShareableHandle");
      !r) {
    return std::unexpected(r.error());
  }
  return DeviceMemory(api, handle);
}

Result<DeviceMemory> DeviceMemory::Retain(const CudaApi& api, CUdeviceptr address) {
  CUmemGenericAllocationHandle handle = 0;
  if (auto r = api.Check(api.cuMemRetainAllocationHandle(
                             &handle, reinterpret_cast<void*>(static_cast<uintptr_t>(address))),
                         "cuMemRetainAllocationHandle");
      !r) {
    return std::unexpected(r.error());
  }
  return DeviceMemory(api, handle);
}

Result<UniqueFd> DeviceMemory::Export() const {
  int fd = -1;
  if (auto r = api_->Check(api_->cuMemExportToShareableHandle(
                               &fd, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                           "cuMemExportToShareableHandle");
      !r) {
    return std::unexpected(r.error());
  }
  return UniqueFd(fd);
}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  if (this != &other) {
    Reset();
    api_ = other.api_;
    handle_ = std::exchange(other.handle_, 0);
  }
  return *this;
}

void DeviceMemory::Reset() {
  if (handle_ != 0) api_->cuMemRelease(handle_);
  handle_ = 0;
}

static Result<void> SetAccess(const CudaApi& api, CUdeviceptr address, uint64_t size_bytes,
                              CUdevice device, Access access, std::span<const CUdevice> peers) {
  std::vector<CUmemAccessDesc> rights(1 + peers.size());
  for (size_t i = 0; i < rights.size(); ++i) {
    rights[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    rights[i].location.id = i == 0 ? device : peers[i - 1];
    rights[i].flags = access == Access::kReadWrite ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                   : CU_MEM_ACCESS_FLAGS_PROT_READ;
  }
  return api.Check(api.cuMemSetAccess(address, size_bytes, rights.data(), rights.size()),
                   "cuMemSetAccess");
}

Result<DeviceMapping> DeviceMapping::Map(const CudaApi& api, const DeviceMemory& memory,
                                         uint64_t size_bytes, CUdevice device, Access access,
                                         std::span<const CUdevice> peers) {
  const Piece piece{memory.handle(), size_bytes};
  return MapPieces(api, {&piece, 1}, device, access, peers);
}

Result<DeviceMapping> DeviceMapping::Map(const CudaApi& api, std::span<const Block> blocks,
                                         CUdevice device, Access access,
                                         std::span<const CUdevice> peers) {
  std::vector<Piece> pieces;
  pieces.reserve(blocks.size());
  for (const Block& block : blocks) pieces.push_back({block.memory.handle(), block.size_bytes});
  return MapPieces(api, pieces, device, access, peers);
}

// One call sets the access of all pieces, and one unmaps them (conformance case
// MappingsSideBySideAreUsedAsOne).
Result<DeviceMapping> DeviceMapping::MapPieces(const CudaApi& api, std::span<const Piece> pieces,
                                               CUdevice device, Access access,
                                               std::span<const CUdevice> peers) {
  uint64_t size_bytes = 0;
  for (const Piece& piece : pieces) size_bytes += piece.size_bytes;
  CUdeviceptr address = 0;
  if (auto r =
          api.Check(api.cuMemAddressReserve(&address, size_bytes, 0, 0, 0), "cuMemAddressReserve");
      !r) {
    return std::unexpected(r.error());
  }
  uint64_t mapped = 0;
  for (const Piece& piece : pieces) {
    auto r =
        api.Check(api.cuMemMap(address + mapped, piece.size_bytes, 0, piece.handle, 0), "cuMemMap");
    if (!r) {
      if (mapped > 0) api.cuMemUnmap(address, mapped);
      api.cuMemAddressFree(address, size_bytes);
      return std::unexpected(r.error());
    }
    mapped += piece.size_bytes;
  }
  DeviceMapping mapping(api, address, size_bytes);
  if (auto r = SetAccess(api, address, size_bytes, device, access, peers); !r) {
    return std::unexpected(r.error());
  }
  return mapping;
}

Result<void> DeviceMapping::Exchange(const DeviceMemory& memory, CUdevice device, Access access) {
  // The mapping alone keeps the former memory alive.
  const Result<DeviceMemory> former = DeviceMemory::Retain(*api_, address_);
  if (!former) return std::unexpected(former.error());
  if (auto r = api_->Check(api_->cuMemUnmap(address_, size_bytes_), "cuMemUnmap"); !r) return r;
  const auto map = [&](const DeviceMemory& what) -> Result<void> {
    if (auto r =
            api_->Check(api_->cuMemMap(address_, size_bytes_, 0, what.handle(), 0), "cuMemMap");
        !r) {
      return r;
    }
    auto r = SetAccess(*api_, address_, size_bytes_, device, access, {});
    if (!r) api_->cuMemUnmap(address_, size_bytes_);
    return r;
  };
  const Result<void> mapped = map(memory);
  if (mapped) return mapped;
  if (const auto back = map(*former); !back) {
    return Fail(Code::kDeviceLost,
                Concat("nothing is mapped at the address any more: ", mapped.error().what(),
                       "; to map the former memory again: ", back.error().what()),
                "end the work that uses the buffer, detach it, then attach it again");
  }
  return mapped;
}

DeviceMapping& DeviceMapping::operator=(DeviceMapping&& other) noexcept {
  if (this != &other) {
    Reset();
    api_ = other.api_;
    address_ = std::exchange(other.address_, 0);
    size_bytes_ = other.size_bytes_;
  }
  return *this;
}

void DeviceMapping::Reset() {
  if (address_ == 0) return;
  api_->cuMemUnmap(address_, size_bytes_);
  api_->cuMemAddressFree(address_, size_bytes_);
  address_ = 0;
}

Result<PrimaryContext> PrimaryContext::Retain(const CudaApi& api, CUdevice device) {
  CUcontext context = nullptr;
  if (auto r =
          api.Check(api.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
      !r) {
    return std::unexpected(r.error());
  }
  return PrimaryContext(api, device, context);
}

Result<void> PrimaryContext::MakeCurrent() const {
  return api_->Check(api_->cuCtxSetCurrent(context_), "cuCtxSetCurrent");
}

PrimaryContext::~PrimaryContext() {
  if (context_ != nullptr) api_->cuDevicePrimaryCtxRelease(device_);
}

Result<Stream> Stream::Create(const CudaApi& api) {
  CUstream stream = nullptr;
  if (auto r = api.Check(api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
      !r) {
    return std::unexpected(r.error());
  }
  return Stream(api, stream);
}

Stream::~Stream() {
  if (stream_ != nullptr) api_->cuStreamDestroy(stream_);
}

Result<PinnedBuffer> PinnedBuffer::Allocate(const CudaApi& api, size_t size_bytes) {
  void* data = nullptr;
  if (auto r = api.Check(api.cuMemHostAlloc(&data, size_bytes, CU_MEMHOSTALLOC_PORTABLE),
                         "cuMemHostAlloc");
      !r) {
    return std::unexpected(r.error());
  }
  return PinnedBuffer(api, data, size_bytes);
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) api_->cuMemFreeHost(data_);
}

}  // namespace gpushm
