#include "runtime/client/page_mapping.h"

#include "contract/limits.h"
#include "platform/driver/stream_waits.h"

namespace gpushm::client {

Result<std::unique_ptr<PageMapping>> PageMapping::Map(const UniqueFd& fd, uint64_t mapped_bytes,
                                                      bool writable) {
  Result<Mapping> mapping = MapSealed(fd, "page", sync::kPageBytes, limits::kPageBytes,
                                      Writers::kAll, /*read_only=*/!writable);
  if (!mapping) return std::unexpected(mapping.error());
  if (mapping->bytes() != mapped_bytes) {
    return Fail(Code::kCorrupt,
                Concat("the received sync page has ", mapping->bytes(),
                       " bytes, but the broker reported ", mapped_bytes),
                "use a library and a sidecar of the same release; see the sidecar's log");
  }
  return std::unique_ptr<PageMapping>(new PageMapping(std::move(*mapping), writable));
}

PageMapping::~PageMapping() {
  StreamWaits::Instance().Forget(mapping_.address(), mapping_.bytes());
  if (registered_with_ == nullptr) return;
  const CUresult gone = registered_with_->cuMemHostUnregister(mapping_.address());
  // The driver must not keep an address that may be reused for something else.
  if (gone != CUDA_SUCCESS && gone != CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED) mapping_.Keep();
}

bool PageMapping::CanEnd() {
  const std::lock_guard lock(mutex_);
  return registered_with_ == nullptr || !StreamWaits::Instance().AnyPending();
}

Result<CUdeviceptr> PageMapping::OnGpu(const CudaApi& api, const sync::Word& word) {
  const auto offset = static_cast<CUdeviceptr>(reinterpret_cast<const std::byte*>(&word) -
                                               static_cast<const std::byte*>(mapping_.address()));
  CUcontext context = nullptr;
  if (auto done = api.Check(api.cuCtxGetCurrent(&context), "cuCtxGetCurrent"); !done) {
    return std::unexpected(done.error());
  }
  if (context == nullptr) {
    return Fail(Code::kUnsupported, "no CUDA context is current on this thread",
                "make one current with cuCtxSetCurrent, or with any call of the CUDA runtime");
  }
  const std::lock_guard lock(mutex_);
  // Looked up each time, because the context may have changed, even at the same address. Portable:
  // one registration serves all contexts, as long as the context in which it was made lives.
  CUdeviceptr base = 0;
  const auto look = [&] { return api.cuMemHostGetDevicePointer(&base, mapping_.address(), 0); };
  if (registered_with_ == nullptr || look() != CUDA_SUCCESS) {
    const unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                           (writable_ ? 0 : CU_MEMHOSTREGISTER_READ_ONLY);
    if (auto done = api.Check(api.cuMemHostRegister(mapping_.address(), mapping_.bytes(), flags),
                              "cuMemHostRegister of a sync page");
        !done) {
      return std::unexpected(done.error());
    }
    registered_with_ = &api;
    if (auto done = api.Check(look(), "cuMemHostGetDevicePointer"); !done) {
      return std::unexpected(done.error());
    }
  }
  return base + offset;
}

}  // namespace gpushm::client
