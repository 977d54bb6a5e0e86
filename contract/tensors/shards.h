// Reads an index of shards (model.safetensors.index.json): in which file each tensor of a large
// model is.
//
//   {"metadata": {...}, "weight_map": {"layer.0.weight": "model-00001-of-00002.safetensors", ...}}
//
// Every key but weight_map is ignored. A file's name is that of a file in the folder of the index:
// without "/", not empty, neither "." nor "..". A name that leaves the folder would read any file
// that the process may read.
// Threads: pure functions; any thread. No exception leaves them, except when memory is exhausted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "contract/tensors/safetensors.h"
#include "platform/base/status.h"

namespace gpushm::tensors {

struct Shard {
  std::string file{};
  std::vector<std::string> tensors{};  // Sorted, unique, not empty.

  friend bool operator==(const Shard&, const Shard&) = default;
};

// The shards in the order of their files' names; at least one. kInvalidArgument: not such an index,
// or a tensor occurs twice. kBusy: it ends in the middle. kExhausted: more than limits::kTensors or
// limits::kTensorFiles.
Result<std::vector<Shard>> ParseShardIndex(std::string_view text);

// Reads it with pread from a file of `size_bytes`, at most limits::kSafetensorsHeaderBytes. `name`
// is for messages.
Result<std::vector<Shard>> ReadShardIndex(int fd, uint64_t size_bytes, std::string_view name);

// Keeps those tensors of a shard's file that the index lists for it. Further ones in the file are
// not part of the model, and are left out. kInvalidArgument: the file lacks one.
Result<void> KeepListed(const Shard& shard, SafetensorsFile* file);

}  // namespace gpushm::tensors
