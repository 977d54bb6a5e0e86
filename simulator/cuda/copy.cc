// Copies and fills: the engine's side, and the API functions.
#include <algorithm>
#include <cstring>

#include "simulator/cuda/driver.h"

namespace gpushm::sim {
namespace {

// Small transfers go word by word with atomics, because a wait may be polling the same words.
constexpr uint64_t kAtomicBytes = 4096;

bool IsAligned(const void* a, const void* b, uint64_t size, uintptr_t unit) {
  return ((reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) | size) & (unit - 1)) ==
         0;
}

template <typename T>
void CopyWords(std::byte* to, const std::byte* from, uint64_t size_bytes) {
  for (uint64_t i = 0; i < size_bytes; i += sizeof(T)) {
    const T value = __atomic_load_n(reinterpret_cast<const T*>(from + i), __ATOMIC_ACQUIRE);
    __atomic_store_n(reinterpret_cast<T*>(to + i), value, __ATOMIC_RELEASE);
  }
}

void CopyBytes(std::byte* to, const std::byte* from, uint64_t size_bytes) {
  if (size_bytes > kAtomicBytes) {
    std::memmove(to, from, size_bytes);
  } else if (IsAligned(to, from, size_bytes, 8)) {
    CopyWords<uint64_t>(to, from, size_bytes);
  } else if (IsAligned(to, from, size_bytes, 4)) {
    CopyWords<uint32_t>(to, from, size_bytes);
  } else {
    CopyWords<uint8_t>(to, from, size_bytes);
  }
}

void CopySegments(const std::vector<Segment>& to, const std::vector<Segment>& from) {
  size_t t = 0;
  size_t f = 0;
  uint64_t t_at = 0;
  uint64_t f_at = 0;
  while (t < to.size() && f < from.size()) {
    const uint64_t length = std::min(to[t].size_bytes - t_at, from[f].size_bytes - f_at);
    CopyBytes(to[t].data + t_at, from[f].data + f_at, length);
    t_at += length;
    f_at += length;
    if (t_at == to[t].size_bytes) {
      ++t;
      t_at = 0;
    }
    if (f_at == from[f].size_bytes) {
      ++f;
      f_at = 0;
    }
  }
}

// Device addresses, or plain host memory, which is used as it is.
CUresult ResolveAny(int device, uint64_t address, uint64_t size_bytes, bool write, bool host,
                    std::vector<Segment>* segments) {
  if (host && CheckAddress(Driver::Get(), address, 1) != CUDA_SUCCESS) {
    segments->push_back(
        {reinterpret_cast<std::byte*>(static_cast<uintptr_t>(address)), size_bytes, nullptr});
    return CUDA_SUCCESS;
  }
  return ResolveOnDevice(device, address, size_bytes, write, segments);
}

Work CopyWork(uint64_t to, bool to_host, uint64_t from, bool from_host, uint64_t size_bytes) {
  return [=](Engine& engine) {
    std::vector<Segment> target;
    std::vector<Segment> source;
    CUresult result = ResolveAny(engine.device(), to, size_bytes, true, to_host, &target);
    if (result == CUDA_SUCCESS) {
      result = ResolveAny(engine.device(), from, size_bytes, false, from_host, &source);
    }
    if (result == CUDA_SUCCESS) CopySegments(target, source);
    return result;
  };
}

template <typename T>
void FillBytes(std::byte* to, uint64_t size_bytes, T value) {
  if (size_bytes > kAtomicBytes) {
    const std::vector<T> block(kAtomicBytes / sizeof(T), value);
    for (uint64_t at = 0; at < size_bytes; at += kAtomicBytes) {
      std::memcpy(to + at, block.data(), std::min(kAtomicBytes, size_bytes - at));
    }
    return;
  }
  for (uint64_t at = 0; at < size_bytes; at += sizeof(T)) {
    __atomic_store_n(reinterpret_cast<T*>(to + at), value, __ATOMIC_RELEASE);
  }
}

Work FillWork(uint64_t to, uint32_t value, uint64_t count, uint64_t unit) {
  return [=](Engine& engine) {
    std::vector<Segment> target;
    const CUresult result = ResolveOnDevice(engine.device(), to, count * unit, true, &target);
    if (result != CUDA_SUCCESS) return result;
    for (const Segment& segment : target) {
      if (unit == 1) {
        FillBytes(segment.data, segment.size_bytes, static_cast<uint8_t>(value));
      } else {
        FillBytes(segment.data, segment.size_bytes, value);
      }
    }
    return CUDA_SUCCESS;
  };
}

uint64_t AddressOf(const void* pointer) {
  return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(pointer));
}

// Copies and fills check a mapping's rights when they are called; kernels would fault.
CUresult CheckAccess(Driver& driver, const Engine& engine, uint64_t address, uint64_t size_bytes,
                     bool write) {
  const CUresult valid = CheckAddress(driver, address, size_bytes);
  HostRange range;
  if (valid != CUDA_SUCCESS || driver.space().FindHost(address, &range)) return valid;
  std::vector<Segment> segments;
  return ResolveOnDevice(engine.device(), address, size_bytes, write, &segments) == CUDA_SUCCESS
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

// Queues on a stream and, if the API is synchronous, waits.
CUresult Run(Driver& driver, CUstream stream, bool wait, Work work) {
  Context* context = nullptr;
  std::shared_ptr<Engine> engine;
  CUresult result = driver.Current(&context, &engine);
  if (result == CUDA_SUCCESS) result = Enqueue(driver, stream, std::move(work));
  if (result != CUDA_SUCCESS || !wait) return result;
  std::shared_ptr<Stream> found;
  result = driver.FindStream(stream, &found);
  return result == CUDA_SUCCESS ? found->engine->Wait(found->engine->Last(*found)) : result;
}

// CUDA's rules: a copy from pageable memory has read its source when the call returns. A copy into
// pageable memory has arrived by then, so it waits for the stream.
CUresult CopyHost(const char* function, CUdeviceptr device, const void* host, size_t size,
                  bool to_device, CUstream stream, bool synchronous) {
  return CallWithContext(
      function, [&](Driver& driver, Context&, const std::shared_ptr<Engine>& engine) {
        if (size == 0) return CUDA_SUCCESS;
        if (host == nullptr) return CUDA_ERROR_INVALID_VALUE;
        const CUresult valid = CheckAccess(driver, *engine, device, size, to_device);
        if (valid != CUDA_SUCCESS) return valid;
        driver.Delay("copy");
        std::shared_ptr<Stream> found;
        const CUresult known = driver.FindStream(stream, &found);
        if (known != CUDA_SUCCESS) return known;
        const bool pageable = CheckAddress(driver, AddressOf(host), size) != CUDA_SUCCESS;
        const bool wait = synchronous || (pageable && !found->capturing);
        Work work = to_device ? CopyWork(device, false, AddressOf(host), true, size)
                              : CopyWork(AddressOf(host), true, device, false, size);
        return Run(driver, stream, wait, std::move(work));
      });
}

CUresult CopyDevice(const char* function, CUdeviceptr to, CUdeviceptr from, size_t size,
                    CUstream stream) {
  return CallWithContext(
      function, [&](Driver& driver, Context&, const std::shared_ptr<Engine>& engine) {
        if (size == 0) return CUDA_SUCCESS;
        CUresult valid = CheckAccess(driver, *engine, to, size, true);
        if (valid == CUDA_SUCCESS) valid = CheckAccess(driver, *engine, from, size, false);
        if (valid != CUDA_SUCCESS) return valid;
        driver.Delay("copy");
        return Run(driver, stream, false, CopyWork(to, false, from, false, size));
      });
}

// One copy of a batch, whose directions the addresses tell.
CUresult CopyOfBatch(Driver& driver, const Engine& engine, CUdeviceptr to, CUdeviceptr from,
                     size_t size, CUstream stream) {
  if (size == 0) return CUDA_ERROR_INVALID_VALUE;
  CUresult valid = CheckAccess(driver, engine, to, size, true);
  if (valid == CUDA_SUCCESS) valid = CheckAccess(driver, engine, from, size, false);
  if (valid != CUDA_SUCCESS) return valid;
  return Run(driver, stream, false, CopyWork(to, false, from, false, size));
}

CUresult Fill(const char* function, CUdeviceptr to, uint32_t value, size_t count, uint64_t unit,
              CUstream stream) {
  return CallWithContext(
      function, [&](Driver& driver, Context&, const std::shared_ptr<Engine>& engine) {
        if (count == 0) return CUDA_SUCCESS;
        if (to % unit != 0) return CUDA_ERROR_INVALID_VALUE;
        const CUresult valid = CheckAccess(driver, *engine, to, count * unit, true);
        if (valid != CUDA_SUCCESS) return valid;
        driver.Delay("copy");
        return Run(driver, stream, false, FillWork(to, value, count, unit));
      });
}

}  // namespace

CUresult ResolveOnDevice(int device, uint64_t address, uint64_t size_bytes, bool write,
                         std::vector<Segment>* segments) {
  const Lookup found = Driver::Get().space().Resolve(address, size_bytes, write, device, segments);
  return found == Lookup::kOk ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

CUresult CheckAddress(Driver& driver, uint64_t address, uint64_t size_bytes) {
  HostRange range;
  if (driver.space().FindHost(address, &range)) {
    return size_bytes <= range.size_bytes - (address - range.address) ? CUDA_SUCCESS
                                                                      : CUDA_ERROR_INVALID_VALUE;
  }
  Mapping first;
  Mapping last;
  const bool mapped =
      driver.space().Find(address, &first) && driver.space().Find(address + size_bytes - 1, &last);
  return mapped ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Between the GPU and memory that it can use; this driver takes no pageable memory here.
CUresult CUDAAPI CopyBatch12080(CUdeviceptr* targets, CUdeviceptr* sources, size_t* sizes,
                                size_t count, CopyAttributes* attributes,
                                size_t* first_of_attributes, size_t attribute_count, size_t* failed,
                                CUstream stream) {
  return CallWithContext(
      "cuMemcpyBatchAsync", [&](Driver& driver, Context&, const std::shared_ptr<Engine>& engine) {
        const bool known = attributes != nullptr && first_of_attributes != nullptr &&
                           attribute_count == 1 && first_of_attributes[0] == 0 &&
                           attributes->source_order == CopyAttributes::kInStreamOrder;
        if (targets == nullptr || sources == nullptr || sizes == nullptr || count == 0 || !known ||
            stream == nullptr) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        driver.Delay("copy");
        for (size_t i = 0; i < count; ++i) {
          const CUresult queued =
              CopyOfBatch(driver, *engine, targets[i], sources[i], sizes[i], stream);
          if (queued == CUDA_SUCCESS) continue;
          if (failed != nullptr) *failed = i;
          return queued;
        }
        return CUDA_SUCCESS;
      });
}

}  // namespace gpushm::sim

using gpushm::sim::CopyDevice;
using gpushm::sim::CopyHost;
using gpushm::sim::Fill;

CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount) {
  return CopyHost("cuMemcpyHtoD", dstDevice, srcHost, ByteCount, true, nullptr, true);
}
CUresult CUDAAPI cuMemcpyDtoH(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount) {
  return CopyHost("cuMemcpyDtoH", srcDevice, dstHost, ByteCount, false, nullptr, true);
}
CUresult CUDAAPI cuMemcpyDtoD(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount) {
  return CopyDevice("cuMemcpyDtoD", dstDevice, srcDevice, ByteCount, nullptr);
}
CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount,
                                   CUstream hStream) {
  return CopyHost("cuMemcpyHtoDAsync", dstDevice, srcHost, ByteCount, true, hStream, false);
}
CUresult CUDAAPI cuMemcpyDtoHAsync(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                                   CUstream hStream) {
  return CopyHost("cuMemcpyDtoHAsync", srcDevice, dstHost, ByteCount, false, hStream, false);
}
CUresult CUDAAPI cuMemcpyDtoDAsync(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                                   CUstream hStream) {
  return CopyDevice("cuMemcpyDtoDAsync", dstDevice, srcDevice, ByteCount, hStream);
}
CUresult CUDAAPI cuMemsetD8(CUdeviceptr dstDevice, unsigned char uc, size_t N) {
  return Fill("cuMemsetD8", dstDevice, uc, N, 1, nullptr);
}
CUresult CUDAAPI cuMemsetD32(CUdeviceptr dstDevice, unsigned int ui, size_t N) {
  return Fill("cuMemsetD32", dstDevice, ui, N, 4, nullptr);
}
CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N,
                                 CUstream hStream) {
  return Fill("cuMemsetD8Async", dstDevice, uc, N, 1, hStream);
}
CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N,
                                  CUstream hStream) {
  return Fill("cuMemsetD32Async", dstDevice, ui, N, 4, hStream);
}
