// A model as it lies on a disk: one safetensors file, an index of shards, or a folder with either.
// It is opened whole or not at all: a failure says whether the rest may still come.
//
//   kNotFound         a file or shard is missing, or a folder has none
//   kBusy             a file is shorter than it says, empty, or being written
//   kSystem           the system refuses to open or read it
//   kInvalidArgument  as it is, it is no model, or more than one
//   kExhausted        it exceeds a limit
//
// The text names the file. docs/design/loading.md has the rules.
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
#include "platform/base/file_stamp.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm::tensors {

struct ModelFile {
  UniqueFd fd{};
  std::string path{};
  uint64_t size_bytes = 0;
  std::vector<Segment> segments{};  // In the order of the file, and of the buffer.
};

// Which of a folder's names are its model.
struct Choice {
  std::string index{};               // If not empty, it names the files.
  std::vector<std::string> files{};  // Otherwise these, sorted.

  friend bool operator==(const Choice&, const Choice&) = default;
};

// What was read to open something, as it was before its first byte.
struct FilesRead {
  struct File {
    std::string path{};
    FileStamp stamp{};
  };
  std::vector<File> files{};
  std::string folder{};  // Empty: none was listed.
  Choice chosen{};       // In the folder.
};

struct Model {
  std::vector<ModelFile> files{};  // In the order of their bytes in the buffer.
  uint64_t file_bytes = 0;         // Of all files.
  uint64_t buffer_bytes = 0;       // The size that the buffer needs.
  std::vector<std::byte> table{};  // The description (layout.h).
  uint32_t tensors = 0;
  FilesRead read{};
};

// Opens a path for reading, without waiting for a process at the other end of a named pipe.
using OpenPath = std::function<Result<UniqueFd>(const std::string& path)>;

// Whether the name is that of tensors: it ends in ".safetensors", ".safetensors.index.json",
// ".safetensors.index.VARIANT.json" or "/".
bool IsModelName(std::string_view path);

// The model among a folder's `names`, which are sorted, and not hidden. `folder` is for messages.
// kNotFound: none, or not all of a set `-0000i-of-N`. kInvalidArgument:
// more than one model.
Result<Choice> ChooseModel(const std::vector<std::string>& names, std::string_view folder);

// Reads the headers of all files and lays the tensors out. `path` is a safetensors file, an index
// of shards, or a folder with one model. kInvalidArgument is also for a model whose tensors have no
// bytes, and for a path that is neither a file nor a folder.
Result<Model> OpenModel(const std::string& path, const OpenPath& open);

// kBusy: a file or the folder is not what it was. It is opened again, because NFS asks the server
// then.
Result<void> CheckUnchanged(const FilesRead& read, const OpenPath& open);

// kBusy: the file changed in the last minute, and has a hole: room was made for it, and not all of
// it is written yet (fallocate, downloads in parallel parts). An older one is taken as it is.
Result<void> CheckWritten(int fd, const FileStamp& stamp, std::string_view path);

// kInvalidArgument: the file is a Git LFS pointer to another one.
Result<void> RefusePointer(int fd, uint64_t size_bytes, std::string_view path);

}  // namespace gpushm::tensors
