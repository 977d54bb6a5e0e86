// Reads the header of a safetensors file: which tensors it has, and where their bytes are.
//
//   8 bytes  length of the header, little-endian
//   header   JSON: {"__metadata__": {key: text} or null, name: {"dtype": "F32", "shape": [2, 3],
//            "data_offsets": [begin, end]}}, padded with spaces
//   data     the tensors' bytes, without gaps
//
// Nothing in a file is trusted. A header is refused unless it is one JSON object of at most
// limits::kSafetensorsHeaderBytes, each entry has the three keys above, once, with values of these
// types, each size is that of type times shape, and the tensors cover the data section from its
// first to its last byte without gap or overlap. Names must be unique and pass TextProblem; a
// tensor has at most limits::kTensorRank dimensions. Other keys of an entry are ignored, whatever
// their values are. docs/design/descriptions.md says where the reference implementation accepts
// more.
//
// Memory: besides the text of the header, some 150 bytes for each tensor, and its name.
// Threads: pure functions; any thread. No exception leaves them, except when memory is exhausted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "contract/tensors/tensor.h"
#include "platform/base/status.h"

namespace gpushm::tensors {

inline constexpr std::string_view kMetadataKey = "__metadata__";
inline constexpr uint64_t kLengthBytes = 8;  // Of the header, before it.

struct SafetensorsFile {
  std::string name{};  // As given to ReadSafetensors; for messages.
  // Where the data section begins: behind length and header.
  uint64_t data_offset = 0;
  // In the order of their bytes. The offset of a tensor counts from data_offset.
  std::vector<Tensor> tensors{};
  Metadata metadata{};
};

// `header` is the JSON alone; `data_bytes` is the size of the data section. Returns a file without
// name, whose data begins at 8 + header.size(). kInvalidArgument: the header breaks a rule above.
// kBusy: only that the data is shorter than the header says. kExhausted: it exceeds a limit.
Result<SafetensorsFile> ParseSafetensorsHeader(std::string_view header, uint64_t data_bytes);

// Reads length and header with pread from a file of `size_bytes`. `name` is for messages. Blocks
// like the file's file system. The codes are as above; kBusy is also for a header that is not there
// yet, or a file that became shorter. kSystem: it cannot be read.
Result<SafetensorsFile> ReadSafetensors(int fd, uint64_t size_bytes, std::string_view name);

}  // namespace gpushm::tensors
