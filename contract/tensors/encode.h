// Writes a tensor table (layout.h).
// Threads: a pure function; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "contract/tensors/tensor.h"
#include "platform/base/status.h"

namespace gpushm::tensors {

// The table of these tensors, in any order, for a buffer of `buffer_bytes`. TensorTable::Open
// accepts whatever it returns.
// kInvalidArgument: a name or a text of the metadata is not valid, two tensors have one name, a
// size is not that of type and shape, or a tensor ends outside of the buffer. kExhausted: more than
// limits::kTensors tensors, limits::kMetadataPairs pairs or limits::kDescriptionBytes.
Result<std::vector<std::byte>> EncodeTable(std::span<const Tensor> tensors,
                                           const Metadata& metadata, uint64_t buffer_bytes);

}  // namespace gpushm::tensors
