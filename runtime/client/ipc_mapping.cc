#include "runtime/client/ipc_mapping.h"

#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

#include "platform/base/per_process.h"

// Of libgpushm-cudaipc.so; null without it.
extern "C" pid_t gpushm_cudaipc_pid() __attribute__((weak));

namespace gpushm::client {
namespace {

struct Key {
  const CudaApi* api;
  CUcontext context;
  IpcMapping::Handle handle;
  auto operator<=>(const Key&) const = default;
};
struct Opened {
  CUdeviceptr base = 0;
  uint32_t uses = 0;
};
struct OpenedTable {
  std::mutex mutex;
  std::map<Key, Opened> opened;
};

OpenedTable& GlobalTable() {
  static constinit PerProcess<OpenedTable> table;
  return table.Get();
}

}  // namespace

pid_t CudaPid() { return gpushm_cudaipc_pid != nullptr ? gpushm_cudaipc_pid() : getpid(); }

Result<IpcMapping> IpcMapping::Open(const CudaApi& api, const Handle& handle) {
  CUcontext context = nullptr;
  if (api.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr) {
    return Fail(Code::kUnsupported, "a buffer of transport cuipc needs a current CUDA context",
                "on this thread, first call cudaFree(0), "
                "or cuDevicePrimaryCtxRetain and cuCtxSetCurrent");
  }
  OpenedTable& table = GlobalTable();
  const std::lock_guard lock(table.mutex);
  const Key key{&api, context, handle};
  Opened& opened = table.opened[key];
  if (opened.uses == 0) {
    CUipcMemHandle raw{};
    static_assert(sizeof raw.reserved == sizeof(Handle));
    std::memcpy(raw.reserved, handle.data(), handle.size());
    if (auto done =
            api.Check(api.cuIpcOpenMemHandle(&opened.base, raw, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                      "cuIpcOpenMemHandle");
        !done) {
      table.opened.erase(key);
      return std::unexpected(done.error());
    }
  }
  ++opened.uses;
  return IpcMapping(api, context, opened.base);
}

IpcMapping::~IpcMapping() {
  if (base_ == 0) return;
  OpenedTable& table = GlobalTable();
  const std::lock_guard lock(table.mutex);
  for (auto entry = table.opened.begin(); entry != table.opened.end(); ++entry) {
    if (entry->first.context != context_ || entry->second.base != base_) continue;
    if (--entry->second.uses == 0) {
      // The context may be gone, and the mapping with it: then nothing is left to do.
      if (api_->cuCtxPushCurrent(context_) == CUDA_SUCCESS) {
        api_->cuIpcCloseMemHandle(base_);
        CUcontext popped = nullptr;
        api_->cuCtxPopCurrent(&popped);
      }
      table.opened.erase(entry);
    }
    return;
  }
}

}  // namespace gpushm::client
