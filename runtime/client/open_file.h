// The files of loads and saves: how they are opened, and by which method their bytes move.
//
// Threads: the same rules as UniqueFd.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "platform/transfer/file_way.h"
#include "platform/transfer/transfer_engine.h"
#include "runtime/client/client.h"

namespace gpushm::client {

struct OpenFile {
  UniqueFd own;             // Unless the caller's descriptor is used as it is.
  int fd = -1;              // `own`, or the caller's.
  FilePlan plan;            // O_DIRECT is set on `fd` if the plan needs it.
  uint64_t size_bytes = 0;  // For a load: the file's size, or 0 for a stream.
  std::string name;         // For messages.

  bool is_stream() const { return plan.way == FileWay::kStream; }
};

Result<OpenFile> OpenToLoad(const TransferFile& from, FileWay asked);

// What a load brings: one file as it is, or the files of a model, whose tensors have places of
// their own in the buffer.
struct LoadSource {
  struct Part {
    OpenFile file;
    std::vector<TransferSegment> segments;  // Empty: the file as it is.
  };
  static Result<LoadSource> Open(const TransferFile& from, const TransferOptions& options);

  bool is_stream() const { return parts.front().file.is_stream(); }
  bool has_tensors() const { return !table.empty(); }

  std::vector<Part> parts;         // At least one.
  uint64_t file_bytes = 0;         // Of all files; 0 for a stream.
  uint64_t buffer_bytes = 0;       // What the buffer must have room for; 0 for a stream.
  std::vector<std::byte> table{};  // The description; empty for a file as it is.
  std::string name;                // For messages.
};

// A safetensors file of a buffer's tensors.
struct TensorsToSave {
  uint64_t generation = 0;
  std::string head;                       // What the file begins with.
  std::vector<TransferSegment> segments;  // In the order of the file.
  uint64_t file_bytes = 0;
};

// Where a save goes. With a path: a temporary file next to the final name, which Commit renames and
// the destructor removes otherwise. Or the caller's descriptor, which Commit leaves alone.
class SaveTarget {
 public:
  static Result<SaveTarget> Open(const TransferFile& to, uint64_t size_bytes, FileWay asked);

  const OpenFile& file() const { return file_; }
  Result<void> Commit();

  SaveTarget(SaveTarget&&) noexcept;
  SaveTarget& operator=(SaveTarget&&) = delete;
  ~SaveTarget();

 private:
  SaveTarget() = default;
  OpenFile file_;
  std::string temporary_;  // If empty, there is nothing to rename or remove.
  std::string path_;
};

}  // namespace gpushm::client
