// The C ABI as gpushmctl uses it: an owner for the client, Results for its statuses, and vectors
// for its arrays. StateReason alone is not in the ABI.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "runtime/include/gpushm/gpushm.h"
#include "runtime/include/gpushm/sync.h"
#include "runtime/include/gpushm/tensors.h"

namespace gpushm::ctl {

struct ConnectOptions {
  std::string folder;      // If empty, the library chooses.
  std::string pod_uid;     // If empty, the own pod.
  int64_t timeout_ms = 0;  // See gpushm.h.
};

// The broker, and the pod's GPUs in the order of their numbers.
struct BrokerFacts {
  gpushm_broker_info info;
  std::vector<gpushm_gpu_info> gpus;
};

struct TransferSettings {
  uint32_t file_method = GPUSHM_FILE_AUTO;
  uint64_t chunk_bytes = 0;
  uint32_t chunks = 0;
  uint32_t threads = 0;  // See gpushm.h.
  bool whole = false;
  uint32_t format = GPUSHM_FORMAT_AUTO;
  uint64_t bytes = 0;  // To load: that must come; 0: not said.
  std::string digest;  // Empty: any content.
  int64_t timeout_ms = 0;
  // Returning false stops the transfer. May be empty.
  std::function<bool(uint64_t done_bytes, uint64_t total_bytes)> progress;
};

class Connection {
 public:
  static Result<Connection> Open(const ConnectOptions& options);

  Result<std::vector<gpushm_info>> List();
  Result<gpushm_info> Lookup(const std::string& name);
  Result<gpushm_reason> Reason(const std::string& name);
  // Tells whoever waits for the buffer why its load waits. Nobody is told that it cannot be told.
  void StateReason(const std::string& name, const Status& why);
  // The values of the signals, barriers and rings among `infos`. Those that are gone by now, or
  // that this container may not use, are left out.
  std::vector<gpushm_sync_info> Look(const std::vector<gpushm_info>& infos);
  Result<gpushm_info> WaitFor(const std::string& name, uint64_t min_generation, int64_t timeout_ms);
  struct Tensor {
    std::string name;
    uint32_t dtype = 0;
    std::vector<uint64_t> shape;
    uint64_t offset = 0;
    uint64_t size_bytes = 0;
  };
  // Of the buffer's current generation, in the order of their names.
  Result<std::vector<Tensor>> Tensors(const std::string& name, int64_t timeout_ms);
  // The bytes that a load of that path needs. It does not wait. kInvalidArgument: a stream, whose
  // size nobody knows.
  static Result<uint64_t> Measure(const std::string& path, uint32_t format = GPUSHM_FORMAT_AUTO);
  // The holders of one buffer, or of all ("").
  Result<std::vector<gpushm_holder>> Holders(const std::string& name);
  Result<BrokerFacts> Broker();
  // Makes the buffer without attaching it, so it outlives this process whatever its options are.
  Result<void> Create(const std::string& name, uint64_t size_bytes,
                      const gpushm_create_options& options);
  Result<void> Delete(const std::string& name, int64_t timeout_ms);
  // `path` "-" means standard input or output.
  Result<gpushm_transfer_result> Load(const std::string& name, const std::string& path,
                                      const TransferSettings& settings);
  // Loads into a new generation of a buffer that exists, and publishes it. `size_bytes` 0: of the
  // present size. Whatever fails, the former generation stays. `generation` gets the new one.
  Result<gpushm_transfer_result> LoadNext(const std::string& name, const std::string& path,
                                          uint64_t size_bytes, const TransferSettings& settings,
                                          uint64_t* generation);
  Result<gpushm_transfer_result> Save(const std::string& name, const std::string& path,
                                      const TransferSettings& settings);

  // What the GPU's memory has, and what a load said of it.
  struct Content {
    uint64_t generation = 0;
    std::string digest;
    std::string kept;  // Empty: nobody made one.
  };
  Result<Content> ContentOf(const std::string& name, int64_t timeout_ms);
  static Result<std::string> FileDigest(const std::string& path, uint32_t format);

 private:
  struct Close {
    void operator()(gpushm_client* client) const { gpushm_close(client); }
  };
  explicit Connection(gpushm_client* client) : client_(client) {}
  std::unique_ptr<gpushm_client, Close> client_;
};

}  // namespace gpushm::ctl
