// The page of a signal, barrier or ring in this process: mapped for the host, and registered with
// the GPU once a stream needs it.
//
// Threads: any. OnGpu needs a current context on the calling thread.
#pragma once

#include <cuda.h>

#include <memory>
#include <mutex>

#include "contract/sync/page.h"
#include "platform/base/sealed_memory.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "platform/driver/cuda_api.h"

namespace gpushm::client {

class PageMapping {
 public:
  // Takes a descriptor that the broker sent. kCorrupt: it is not a valid page.
  static Result<std::unique_ptr<PageMapping>> Map(const UniqueFd& fd, uint64_t mapped_bytes,
                                                  bool writable);
  PageMapping(const PageMapping&) = delete;
  PageMapping& operator=(const PageMapping&) = delete;
  ~PageMapping();

  void* address() const { return mapping_.address(); }
  uint64_t bytes() const { return mapping_.bytes(); }

  // The GPU's address of `word`, which lies in this page. The first call registers the page with
  // the driver (about 100 us), for all contexts of the process. kUnsupported: no current context.
  Result<CUdeviceptr> OnGpu(const CudaApi& api, const sync::Word& word);

  // Whether the mapping can end immediately. The driver forgets a page only when every stream has
  // done its work (docs/guides/synchronisation.md), so not while a stream of this process waits.
  bool CanEnd();

 private:
  PageMapping(Mapping mapping, bool writable) : mapping_(std::move(mapping)), writable_(writable) {}

  Mapping mapping_;
  const bool writable_;
  std::mutex mutex_;                          // Guards the fields below.
  const CudaApi* registered_with_ = nullptr;  // Null: not registered yet.
};

}  // namespace gpushm::client
