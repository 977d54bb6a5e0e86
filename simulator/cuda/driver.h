// The simulated driver of one process: what cuInit makes, and the common frame of every API
// function.
//
// Threads: thread-safe. Lock order: Driver::mutex, then an Engine's mutex. Where possible, the
// card's file lock is taken while holding neither.
#pragma once

#include "simulator/exported_api.h"
// It must be the first include, as exported_api.h explains.

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "platform/driver/cuda_api.h"
#include "simulator/config.h"
#include "simulator/cuda/address_space.h"
#include "simulator/cuda/engine.h"
#include "simulator/faults.h"
#include "simulator/state.h"

namespace gpushm::sim {

struct IpcOpen {
  uint64_t address = 0;
  int count = 0;
};

// A device's primary context. The object exists permanently; it is active while somebody retains
// it.
struct Context {
  int device = 0;
  int retains = 0;
  std::shared_ptr<Engine> engine;      // Null: not active.
  std::shared_ptr<Backing> reserve;    // Its 523 MiB of the card.
  std::map<uint64_t, uint64_t> owned;  // From cuMemAlloc and cuIpcOpen: address -> reserved size.
  std::map<UuidBytes, IpcOpen> ipc;    // By allocation.
  std::atomic<bool> ipc_poisoned = false;
};

struct Handle {
  std::shared_ptr<Allocation> allocation;
  int references = 1;
};

struct SharedEvent;

struct Event {
  unsigned flags = 0;
  std::shared_ptr<Operation> last;
  std::shared_ptr<Engine> engine;
  std::shared_ptr<SharedEvent> shared;  // Interprocess events only.
};

struct Graph {
  std::vector<Work> nodes;
};

class Driver {
 public:
  // Never destroyed: worker threads and mappings outlive main.
  static Driver& Get();

  CUresult Init();
  // The checks before any function after cuInit: the fork rule, injected faults.
  CUresult Enter(const char* function);
  void Delay(const char* latency) const;

  int device_count() const { return static_cast<int>(devices_.size()); }
  const Card* card(int device) const {
    return device >= 0 && device < device_count() ? devices_[static_cast<size_t>(device)] : nullptr;
  }
  // The ordinal of a card in this process; -1: not visible.
  int OrdinalOf(const UuidBytes& uuid) const;
  const Machine& machine() const { return machine_; }
  State& state() { return *state_; }
  bool mps() const { return mps_; }  // Whether this process is a client of MPS.
  AddressSpace& space() { return space_; }

  // The calling thread's context. INVALID_CONTEXT: none; CONTEXT_IS_DESTROYED: released.
  CUresult Current(Context** context, std::shared_ptr<Engine>* engine);
  Context* ContextOf(CUcontext handle);
  // A stream of the current context; 0, 1 and 2 are the default streams.
  CUresult FindStream(CUstream handle, std::shared_ptr<Stream>* stream);
  bool AnyContextActive();

  std::mutex mutex;
  // Guarded by mutex:
  std::vector<std::unique_ptr<Context>> contexts;  // By device.
  std::map<CUmemGenericAllocationHandle, Handle> handles;
  std::map<CUstream, std::shared_ptr<Stream>> streams;
  std::map<CUevent, std::shared_ptr<Event>> events;
  std::map<CUgraph, std::shared_ptr<Graph>> graphs;
  std::map<CUgraphExec, std::shared_ptr<Graph>> graph_execs;
  uint64_t next_handle = 0x1000;

  // A value for an opaque handle of type T, never used twice.
  template <typename T>
  T NewHandle() {
    return reinterpret_cast<T>(static_cast<uintptr_t>(next_handle += 16));
  }

 private:
  enum class Phase { kBefore, kReady, kForked };

  Driver() = default;
  CUresult InitLocked();

  std::mutex init_mutex_;
  std::atomic<Phase> phase_ = Phase::kBefore;
  bool mps_ = false;
  Machine machine_;
  std::vector<const Card*> devices_;
  State* state_ = nullptr;
  AddressSpace space_;
};

// Runs the body of an API function. No exception leaves the library.
template <typename Body>
CUresult Call(const char* function, Body&& body) noexcept {
  try {
    const CUresult entered = Driver::Get().Enter(function);
    return entered == CUDA_SUCCESS ? body(Driver::Get()) : entered;
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

// The same for a function that needs a current context without a fault.
template <typename Body>
CUresult CallWithContext(const char* function, Body&& body) noexcept {
  return Call(function, [&](Driver& driver) {
    Context* context = nullptr;
    std::shared_ptr<Engine> engine;
    CUresult result = driver.Current(&context, &engine);
    if (result == CUDA_SUCCESS) result = engine->error();
    return result == CUDA_SUCCESS ? body(driver, *context, engine) : result;
  });
}

CUresult ToResult(Outcome outcome);

// In allocation.cc: reserves addresses for a whole allocation, maps it, and gives the context the
// right to it. cuMemAlloc and cuIpcOpenMemHandle use it.
CUresult MapWhole(Driver& driver, Context& context, std::shared_ptr<Allocation> allocation,
                  uint64_t visible_bytes, uint64_t* address);
void UnmapWhole(Driver& driver, uint64_t address);

// In stream.cc: puts work on a stream, or into the graph while the stream is being captured.
CUresult Enqueue(Driver& driver, CUstream handle, Work work);
// In copy.cc: cuMemcpyBatchAsync as CUDA 12.8 made it (cuda_api.h).
CUresult CUDAAPI CopyBatch12080(CUdeviceptr* targets, CUdeviceptr* sources, size_t* sizes,
                                size_t count, CopyAttributes* attributes,
                                size_t* first_of_attributes, size_t attribute_count, size_t* failed,
                                CUstream stream);
// Resolves device memory inside a worker; returns the fault that a GPU would report.
CUresult ResolveOnDevice(int device, uint64_t address, uint64_t size_bytes, bool write,
                         std::vector<Segment>* segments);
// Whether an API function accepts the address, before any work is queued.
CUresult CheckAddress(Driver& driver, uint64_t address, uint64_t size_bytes);

}  // namespace gpushm::sim
