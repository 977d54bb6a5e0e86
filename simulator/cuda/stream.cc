// Streams and stream memory operations.
#include "simulator/cuda/driver.h"

namespace gpushm::sim {
namespace {

template <typename T>
bool Satisfied(T seen, T value, unsigned flags) {
  using Signed = std::make_signed_t<T>;
  switch (flags & 3U) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return static_cast<Signed>(seen - value) >= 0;  // Cyclic: UINT_MAX releases nobody.
    case CU_STREAM_WAIT_VALUE_EQ:
      return seen == value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (seen & value) != 0;
    default:
      return static_cast<T>(~(seen | value)) != 0;  // CU_STREAM_WAIT_VALUE_NOR
  }
}

template <typename T>
T* WordOf(const Segment& segment) {
  return reinterpret_cast<T*>(segment.data);
}

template <typename T>
Work WaitWork(uint64_t address, T value, unsigned flags) {
  return [=](Engine& engine) {
    std::vector<Segment> word;
    const CUresult result = ResolveOnDevice(engine.device(), address, sizeof(T), false, &word);
    if (result != CUDA_SUCCESS) return result;
    const Engine::MemoryWait waiting(engine);
    engine.Poll([&] {
      // Acquire: pairs with the writer's release, whatever process the writer is in.
      return Satisfied<T>(__atomic_load_n(WordOf<T>(word.front()), __ATOMIC_ACQUIRE), value, flags);
    });
    return CUDA_SUCCESS;
  };
}

template <typename T>
Work WriteWork(uint64_t address, T value) {
  return [=](Engine& engine) {
    std::vector<Segment> word;
    const CUresult result = ResolveOnDevice(engine.device(), address, sizeof(T), true, &word);
    if (result != CUDA_SUCCESS) return result;
    __atomic_store_n(WordOf<T>(word.front()), value, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
  };
}

CUresult MemoryOperation(const char* function, CUstream stream, CUdeviceptr address,
                         uint64_t size_bytes, bool flags_valid, Work work) {
  return CallWithContext(function, [&](Driver& driver, Context&, const std::shared_ptr<Engine>&) {
    if (address % size_bytes != 0 || !flags_valid) return CUDA_ERROR_INVALID_VALUE;
    const CUresult valid = CheckAddress(driver, address, size_bytes);
    if (valid != CUDA_SUCCESS) return valid;
    driver.Delay("memop");
    return Enqueue(driver, stream, std::move(work));
  });
}

bool WaitFlagsValid(unsigned flags) { return (flags & ~3U) == 0; }
bool WriteFlagsValid(unsigned flags) {
  return (flags & ~static_cast<unsigned>(CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)) == 0;
}

}  // namespace

CUresult Enqueue(Driver& driver, CUstream handle, Work work) {
  std::shared_ptr<Stream> stream;
  const CUresult result = driver.FindStream(handle, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (stream->engine->error() != CUDA_SUCCESS) return stream->engine->error();
  {
    const std::lock_guard lock(driver.mutex);
    if (stream->capturing) {
      stream->captured.push_back(std::move(work));
      return CUDA_SUCCESS;
    }
  }
  stream->engine->Submit(*stream, std::move(work));
  return CUDA_SUCCESS;
}

}  // namespace gpushm::sim

using gpushm::sim::Call;
using gpushm::sim::CallWithContext;
using gpushm::sim::Context;
using gpushm::sim::Driver;
using gpushm::sim::Engine;
using gpushm::sim::MemoryOperation;
using gpushm::sim::Stream;

CUresult CUDAAPI cuStreamCreate(CUstream* phStream, unsigned int Flags) {
  return CallWithContext(
      "cuStreamCreate", [&](Driver& driver, Context&, const std::shared_ptr<Engine>& engine) {
        if (phStream == nullptr || (Flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        if (!engine->AwaitRoomForStream()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
        auto stream = engine->AddStream((Flags & CU_STREAM_NON_BLOCKING) != 0);
        const std::lock_guard lock(driver.mutex);
        *phStream = driver.NewHandle<CUstream>();
        driver.streams[*phStream] = std::move(stream);
        return CUDA_SUCCESS;
      });
}

// Returns at once; queued work still runs.
CUresult CUDAAPI cuStreamDestroy(CUstream hStream) {
  return Call("cuStreamDestroy", [&](Driver& driver) {
    const std::lock_guard lock(driver.mutex);
    return driver.streams.erase(hStream) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}

CUresult CUDAAPI cuStreamSynchronize(CUstream hStream) {
  return Call("cuStreamSynchronize", [&](Driver& driver) {
    std::shared_ptr<Stream> stream;
    const CUresult result = driver.FindStream(hStream, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (stream->capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return stream->engine->Wait(stream->engine->Last(*stream));
  });
}

CUresult CUDAAPI cuStreamQuery(CUstream hStream) {
  return Call("cuStreamQuery", [&](Driver& driver) {
    std::shared_ptr<Stream> stream;
    const CUresult result = driver.FindStream(hStream, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (stream->capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    const auto last = stream->engine->Last(*stream);
    if (stream->engine->error() != CUDA_SUCCESS) return stream->engine->error();
    const bool done = last == nullptr || last->done.load(std::memory_order_acquire);
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

CUresult CUDAAPI cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                     unsigned int flags) {
  return MemoryOperation("cuStreamWaitValue32", stream, addr, sizeof value,
                         gpushm::sim::WaitFlagsValid(flags),
                         gpushm::sim::WaitWork<uint32_t>(addr, value, flags));
}
CUresult CUDAAPI cuStreamWaitValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                     unsigned int flags) {
  return MemoryOperation("cuStreamWaitValue64", stream, addr, sizeof value,
                         gpushm::sim::WaitFlagsValid(flags),
                         gpushm::sim::WaitWork<uint64_t>(addr, value, flags));
}
CUresult CUDAAPI cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                      unsigned int flags) {
  return MemoryOperation("cuStreamWriteValue32", stream, addr, sizeof value,
                         gpushm::sim::WriteFlagsValid(flags),
                         gpushm::sim::WriteWork<uint32_t>(addr, value));
}
CUresult CUDAAPI cuStreamWriteValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                      unsigned int flags) {
  return MemoryOperation("cuStreamWriteValue64", stream, addr, sizeof value,
                         gpushm::sim::WriteFlagsValid(flags),
                         gpushm::sim::WriteWork<uint64_t>(addr, value));
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void* userData) {
  return CallWithContext("cuLaunchHostFunc",
                         [&](Driver& driver, Context&, const std::shared_ptr<Engine>&) {
                           if (fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
                           return Enqueue(driver, hStream, [fn, userData](Engine&) {
                             fn(userData);
                             return CUDA_SUCCESS;
                           });
                         });
}
