// Owners of what the CUDA driver allocates: one type for each resource. Nothing else in the tree
// calls cuMemRelease, cuMemUnmap, cuMemAddressFree, cuStreamDestroy and similar functions.
//
// Only PrimaryContext makes a context. DeviceMemory and DeviceMapping need none (verified on the
// real driver: conformance cases NoContext*).
//
// Threads: an object may move between threads, but only one thread at a time may use it.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "platform/base/access.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "platform/driver/cuda_api.h"

namespace gpushm {

// A GPU's UUID as 16 bytes; text form "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx".
struct GpuUuid {
  std::array<uint8_t, 16> bytes{};
  bool operator==(const GpuUuid&) const = default;
  std::string ToString() const;
};

struct DeviceInfo {
  CUdevice device = 0;  // Ordinal in this process.
  GpuUuid uuid;
  std::string name;
  uint64_t total_bytes = 0;
  uint64_t granularity = 0;  // Allocation unit of cuMemCreate, bytes.
};

// The GPUs that this process sees. Needs no context.
Result<std::vector<DeviceInfo>> ListDevices(const CudaApi& api);

// How a GPU reaches the memory of another one in place; the better way is the larger one.
enum class PeerAccess { kNone, kPcie, kNvLink };

// Needs no context.
Result<PeerAccess> PeerAccessOf(const CudaApi& api, CUdevice peer, CUdevice home);

// Rounds up to a multiple of `granularity` (> 0).
inline uint64_t RoundUp(uint64_t size_bytes, uint64_t granularity) {
  return (size_bytes + granularity - 1) / granularity * granularity;
}

// Physical GPU memory (cuMemCreate), exportable as a file descriptor.
class DeviceMemory {
 public:
  // `size_bytes` must be a multiple of the device's granularity. The driver zeroes memory that last
  // belonged to another process.
  static Result<DeviceMemory> Create(const CudaApi& api, CUdevice device, uint64_t size_bytes);
  // Does not take ownership of `fd`: the caller keeps and closes it.
  static Result<DeviceMemory> Import(const CudaApi& api, int fd);
  // The allocation at any address of a VMM mapping of this process.
  static Result<DeviceMemory> Retain(const CudaApi& api, CUdeviceptr address);

  // A descriptor that keeps the memory alive in whichever process holds it. The call costs 0.6 to
  // 1.2 ms in a process without a context, so export once and keep it. Imported memory cannot be
  // exported.
  Result<UniqueFd> Export() const;

  CUmemGenericAllocationHandle handle() const { return handle_; }

  DeviceMemory(DeviceMemory&& other) noexcept
      : api_(other.api_), handle_(std::exchange(other.handle_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() { Reset(); }

 private:
  DeviceMemory(const CudaApi& api, CUmemGenericAllocationHandle handle)
      : api_(&api), handle_(handle) {}
  void Reset();

  const CudaApi* api_;
  CUmemGenericAllocationHandle handle_ = 0;
};

// A range of device addresses with memory mapped into it.
class DeviceMapping {
 public:
  // Maps `memory` for use by `device`, and by `peers` over NVLink or PCIe. `size_bytes` is its
  // whole size, because the driver does not map parts. The mapping itself keeps the memory alive:
  // `memory` may be destroyed afterwards.
  static Result<DeviceMapping> Map(const CudaApi& api, const DeviceMemory& memory,
                                   uint64_t size_bytes, CUdevice device, Access access,
                                   std::span<const CUdevice> peers = {});
  // The same for several allocations side by side.
  struct Block {
    DeviceMemory memory;
    uint64_t size_bytes;
  };
  static Result<DeviceMapping> Map(const CudaApi& api, std::span<const Block> blocks,
                                   CUdevice device, Access access,
                                   std::span<const CUdevice> peers = {});

  // Maps `memory`, of the same size, in place of what is mapped. After a failure, the former memory
  // is mapped again; after kDeviceLost, nothing is.
  Result<void> Exchange(const DeviceMemory& memory, CUdevice device, Access access);

  CUdeviceptr address() const { return address_; }
  uint64_t size_bytes() const { return size_bytes_; }

  DeviceMapping(DeviceMapping&& other) noexcept
      : api_(other.api_),
        address_(std::exchange(other.address_, 0)),
        size_bytes_(other.size_bytes_) {}
  DeviceMapping& operator=(DeviceMapping&& other) noexcept;
  DeviceMapping(const DeviceMapping&) = delete;
  DeviceMapping& operator=(const DeviceMapping&) = delete;
  // Work that still uses the range will fault, so callers synchronise first.
  ~DeviceMapping() { Reset(); }

 private:
  DeviceMapping(const CudaApi& api, CUdeviceptr address, uint64_t size_bytes)
      : api_(&api), address_(address), size_bytes_(size_bytes) {}
  struct Piece {
    CUmemGenericAllocationHandle handle;
    uint64_t size_bytes;
  };
  static Result<DeviceMapping> MapPieces(const CudaApi& api, std::span<const Piece> pieces,
                                         CUdevice device, Access access,
                                         std::span<const CUdevice> peers);
  void Reset();

  const CudaApi* api_;
  CUdeviceptr address_ = 0;
  uint64_t size_bytes_ = 0;
};

// A reference to a device's primary context. The first one of a process takes 523 MiB of the card
// and 100 to 175 ms. Only the loader, tests and benchmarks make one.
class PrimaryContext {
 public:
  static Result<PrimaryContext> Retain(const CudaApi& api, CUdevice device);

  CUcontext context() const { return context_; }
  // Makes the context current on the calling thread.
  Result<void> MakeCurrent() const;

  PrimaryContext(PrimaryContext&& other) noexcept
      : api_(other.api_),
        device_(other.device_),
        context_(std::exchange(other.context_, nullptr)) {}
  PrimaryContext& operator=(PrimaryContext&&) = delete;
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;
  ~PrimaryContext();

 private:
  PrimaryContext(const CudaApi& api, CUdevice device, CUcontext context)
      : api_(&api), device_(device), context_(context) {}

  const CudaApi* api_;
  CUdevice device_;
  CUcontext context_;
};

// A non-blocking stream of the current context.
class Stream {
 public:
  static Result<Stream> Create(const CudaApi& api);
  CUstream get() const { return stream_; }

  Stream(Stream&& other) noexcept
      : api_(other.api_), stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&&) = delete;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

 private:
  Stream(const CudaApi& api, CUstream stream) : api_(&api), stream_(stream) {}
  const CudaApi* api_;
  CUstream stream_;
};

// Page-locked host memory of the current context.
class PinnedBuffer {
 public:
  static Result<PinnedBuffer> Allocate(const CudaApi& api, size_t size_bytes);
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t size_bytes() const { return size_bytes_; }
  // Call this if the context has ended; the memory ended with it.
  void Forget() { data_ = nullptr; }

  PinnedBuffer(PinnedBuffer&& other) noexcept
      : api_(other.api_),
        data_(std::exchange(other.data_, nullptr)),
        size_bytes_(other.size_bytes_) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    return *this;
  }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  ~PinnedBuffer();

 private:
  PinnedBuffer(const CudaApi& api, void* data, size_t size_bytes)
      : api_(&api), data_(data), size_bytes_(size_bytes) {}
  const CudaApi* api_;
  void* data_;
  size_t size_bytes_;
};

}  // namespace gpushm
