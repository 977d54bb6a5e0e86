// Transfers by GPUDirect Storage, chunk by chunk, as described in transfer_engine.h. The last bytes
// that do not fill a block go by O_DIRECT and host memory, because the disk moves whole blocks.
#pragma once

#include "platform/transfer/transfer_engine.h"

namespace gpushm {

Result<TransferReport> LoadByGds(const CudaApi& api, const TransferJob& job);
Result<TransferReport> SaveByGds(const CudaApi& api, const TransferJob& job);

}  // namespace gpushm
