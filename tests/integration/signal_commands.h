// A worker's commands about signals (processes.h). They apply to the signal that it opened last:
//   signal open NAME r|w TIMEOUT_MS   VALUE: generation; w: to write it
//   signal set VALUE
//   signal wait VALUE TIMEOUT_MS      on the host
//   signal check VALUE
//   signal value | state              VALUE: gpushm_signal_info's
//   signal close
//   signal swap                       with another one, opened before or after this
// These use a stream of the worker, which is made at first use (NUMBER 0 to 63):
//   signal record NUMBER VALUE
//   signal store NUMBER VALUE         without the library, as a node of a graph does
//   signal await NUMBER VALUE         what follows on the stream runs after it
//   signal sync NUMBER TIMEOUT_MS     until the stream is done; GPUSHM_TIMEOUT
//   signal put NUMBER WORD            first word of the latest attachment, on the stream
//   signal get NUMBER                 starts to fetch that word; `signal word`: VALUE
#pragma once

#include <cuda.h>

#include <map>
#include <sstream>

#include "platform/driver/cuda_api.h"
#include "runtime/include/gpushm/sync.h"
#include "tests/integration/processes.h"

namespace gpushm::integration {

class SignalCommands {
 public:
  SignalCommands(gpushm_client* client, const CudaApi& api) : client_(client), api_(api) {}
  Answer Do(std::istringstream& in, gpushm_attachment* latest);
  CUstream StreamOf(int number);
  gpushm_signal* signal() const { return signal_; }

 private:
  Answer Open(std::istringstream& in);
  Answer OnStream(const std::string& verb, std::istringstream& in, gpushm_attachment* latest);
  Answer Put(CUstream stream, uint32_t word, gpushm_attachment* latest);
  Answer Get(CUstream stream, gpushm_attachment* latest);
  Answer Sync(CUstream stream, int64_t timeout_ms);

  gpushm_client* const client_;
  const CudaApi& api_;
  gpushm_signal* signal_ = nullptr;
  gpushm_signal* other_ = nullptr;
  std::map<int, CUstream> streams_;
  uint32_t* word_ = nullptr;  // Pinned, because a copy into other memory waits for the stream.
};

}  // namespace gpushm::integration
