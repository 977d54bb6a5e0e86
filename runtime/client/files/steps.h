// What loads and saves have in common. Internal.
//
// Threads: any thread may call any function.
#pragma once

#include <cstdint>
#include <functional>

#include "platform/base/status.h"
#include "platform/driver/device.h"
#include "platform/transfer/transfer_engine.h"
#include "runtime/client/attachment.h"
#include "runtime/client/files/open_file.h"
#include "runtime/client/files/transfer.h"
#include "runtime/client/wait.h"

namespace gpushm::client {

// Fails if the caller stops the transfer, or its time is over. `total_bytes` 0: the total is not
// known.
Result<void> CallProgress(const TransferOptions& options, const Wait& wait, uint64_t done_bytes,
                          uint64_t total_bytes);
// Whether the mapping's own memory can be moved and read.
Result<void> CheckMovable(Attachment* attachment);
TransferJob JobFor(const OpenFile& file, const TransferOptions& options);
// Calls `transfer` under a context of the GPU.
Result<TransferOutcome> WithContext(Client* client, const GpuUuid& gpu,
                                    const std::function<Result<TransferOutcome>()>& transfer);

}  // namespace gpushm::client
