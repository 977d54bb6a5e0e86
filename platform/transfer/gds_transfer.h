// Transfers by GPUDirect Storage, chunk after chunk, as transfer_engine.h says. What does not fill
// a block at the file's end goes by O_DIRECT and host memory: the disk moves whole blocks.
#pragma once

#include "platform/transfer/transfer_engine.h"

namespace gpushm {

Result<TransferReport> LoadByGds(const CudaApi& api, const TransferJob& job);
Result<TransferReport> SaveByGds(const CudaApi& api, const TransferJob& job);

}  // namespace gpushm
