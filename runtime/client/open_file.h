// The files of loads and saves: opened, and the way chosen by which their bytes go.
//
// Threads: as UniqueFd.
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
  FilePlan plan;            // O_DIRECT is set where that is the way.
  uint64_t size_bytes = 0;  // To load: of the file; of a stream 0.
  bool for_broker = true;   // A whole file or a pipe: what the broker's child can use, too.
  std::string name;         // For humans.

  bool is_stream() const { return plan.way == FileWay::kStream; }
};

Result<OpenFile> OpenToLoad(const TransferFile& from, FileWay asked);

// Where a save goes: a file beside its final name, which it takes with Commit and is removed
// without; or the caller's descriptor, which Commit leaves alone.
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
  std::string temporary_;  // Empty: nothing to rename or remove.
  std::string path_;
};

}  // namespace gpushm::client
