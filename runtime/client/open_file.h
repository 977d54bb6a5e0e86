// The files of loads and saves: how they are opened, and by which method their bytes move.
//
// Threads: the same rules as UniqueFd.
#pragma once

#include <cstdint>
#include <string>

#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "platform/transfer/file_way.h"
#include "runtime/client/client.h"

namespace gpushm::client {

struct OpenFile {
  UniqueFd own;             // Unless the caller's descriptor is used as it is.
  int fd = -1;              // `own`, or the caller's.
  FilePlan plan;            // O_DIRECT is set on `fd` if the plan needs it.
  uint64_t size_bytes = 0;  // For a load: the file's size, or 0 for a stream.
  bool for_broker =
      true;  // True for a file from its start, or a pipe: the broker's child can use these, too.
  std::string name;  // For messages.

  bool is_stream() const { return plan.way == FileWay::kStream; }
};

Result<OpenFile> OpenToLoad(const TransferFile& from, FileWay asked);

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
