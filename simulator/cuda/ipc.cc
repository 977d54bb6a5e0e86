// Legacy interprocess memory handles, with their pitfalls: equal PIDs on both sides fail and poison
// the context, and a dead exporter's memory cannot be opened although it may still exist.
#include <unistd.h>

#include <cstring>

#include "simulator/cuda/driver.h"

namespace gpushm::sim {
namespace {

struct IpcMemory {  // Inside CUipcMemHandle.
  uint32_t magic;
  int32_t pid;
  uint64_t process;
  UuidBytes card;
  UuidBytes id;
  uint64_t size_bytes;
  uint64_t reserved;
};
static_assert(sizeof(IpcMemory) == sizeof(CUipcMemHandle));
constexpr uint32_t kMagic = 0x4D454D21;

CUresult Open(Driver& driver, Context& context, const IpcMemory& memory, uint64_t* address) {
  {
    const std::lock_guard lock(driver.mutex);
    const auto known = context.ipc.find(memory.id);
    if (known != context.ipc.end()) {
      ++known->second.count;
      *address = known->second.address;
      return CUDA_SUCCESS;
    }
  }
  if (!driver.state().IsAlive(memory.process)) return CUDA_ERROR_INVALID_HANDLE;
  const Card* owner = driver.machine().Find(memory.card);
  if (owner != nullptr && !driver.card(context.device)->CanReach(*owner)) {
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  }
  auto allocation = std::make_shared<Allocation>();
  allocation->imported = true;
  allocation->device = driver.OrdinalOf(memory.card);
  const Outcome outcome = driver.state().OpenById(memory.card, memory.id, &allocation->backing);
  if (outcome != Outcome::kOk) return ToResult(outcome);
  const uint64_t size_bytes = allocation->backing->record().size_bytes;
  if (memory.size_bytes == 0 || memory.size_bytes > size_bytes) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult result =
      MapWhole(driver, context, std::move(allocation), memory.size_bytes, address);
  if (result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(driver.mutex);
  context.ipc[memory.id] = {*address, 1};
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace gpushm::sim

using gpushm::sim::CallWithContext;
using gpushm::sim::Context;
using gpushm::sim::Driver;
using gpushm::sim::Engine;
using gpushm::sim::IpcMemory;

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle* pHandle, CUdeviceptr dptr) {
  return CallWithContext(
      "cuIpcGetMemHandle", [&](Driver& driver, Context& context, const std::shared_ptr<Engine>&) {
        if (context.ipc_poisoned) return CUDA_ERROR_INVALID_CONTEXT;
        gpushm::sim::Mapping mapping;
        if (pHandle == nullptr || !driver.space().Find(dptr, &mapping) || mapping.vmm ||
            mapping.allocation->imported) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        driver.Delay("ipc_export");
        const gpushm::sim::Record& record = mapping.allocation->backing->record();
        const IpcMemory content{
            gpushm::sim::kMagic, getpid(), driver.state().process(), record.card, record.id,
            mapping.size_bytes,  0};
        std::memcpy(pHandle, &content, sizeof content);
        return CUDA_SUCCESS;
      });
}

CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr* pdptr, CUipcMemHandle handle, unsigned int Flags) {
  return CallWithContext(
      "cuIpcOpenMemHandle", [&](Driver& driver, Context& context, const std::shared_ptr<Engine>&) {
        if (context.ipc_poisoned) return CUDA_ERROR_INVALID_CONTEXT;
        IpcMemory content;
        std::memcpy(&content, &handle, sizeof content);
        if (pdptr == nullptr || Flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ||
            content.magic != gpushm::sim::kMagic) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        if (content.pid == getpid()) {
          context.ipc_poisoned = true;
          return CUDA_ERROR_INVALID_CONTEXT;
        }
        driver.Delay("ipc_open");
        uint64_t address = 0;
        const CUresult result = gpushm::sim::Open(driver, context, content, &address);
        if (result == CUDA_SUCCESS) *pdptr = address;
        return result;
      });
}

CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr dptr) {
  return CallWithContext("cuIpcCloseMemHandle", [&](Driver& driver, Context& context,
                                                    const std::shared_ptr<Engine>& engine) {
    driver.Delay("ipc_close");
    engine->WaitForAll();
    {
      const std::lock_guard lock(driver.mutex);
      auto open = context.ipc.begin();
      while (open != context.ipc.end() && open->second.address != dptr) ++open;
      if (open == context.ipc.end()) return CUDA_ERROR_INVALID_VALUE;
      if (--open->second.count > 0) return CUDA_SUCCESS;
      context.ipc.erase(open);
      context.owned.erase(dptr);
    }
    UnmapWhole(driver, dptr);
    return CUDA_SUCCESS;
  });
}
