// A model as it lies on a disk: one safetensors file, an index of shards, or a folder with either.
// The library and the broker's loader open models by these functions; they differ in how they open
// a path.
//
// Threads: pure functions, except that they read files; any thread. They block like the file system
// of the files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "contract/tensors/plan.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm::tensors {

struct ModelFile {
  UniqueFd fd{};
  std::string path{};
  uint64_t size_bytes = 0;
  std::vector<Segment> segments{};  // In the order of the file, and of the buffer.
};

struct Model {
  std::vector<ModelFile> files{};  // In the order of their bytes in the buffer.
  uint64_t buffer_bytes = 0;       // The size that the buffer needs.
  std::vector<std::byte> table{};  // The description (layout.h).
  uint32_t tensors = 0;
};

// Opens a path for reading, without waiting for a process at the other end of a named pipe.
using OpenPath = std::function<Result<UniqueFd>(const std::string& path)>;

// Whether the name is that of tensors: it ends in ".safetensors", ".safetensors.index.json" or "/".
bool IsModelName(std::string_view path);

// Reads the headers of all files and lays the tensors out. `path` is a safetensors file, an index
// of shards, or a folder. A folder's model.safetensors.index.json is used if it is there; otherwise
// all of its files whose names end in ".safetensors" are, in the order of their names.
// kNotFound: a file is missing, or the folder has no tensors. kInvalidArgument: a file is not a
// regular one, or has no tensor with any bytes. kCorrupt, kExhausted: as safetensors.h and plan.h
// say; the text names the file.
Result<Model> OpenModel(const std::string& path, const OpenPath& open);

}  // namespace gpushm::tensors
