// The files of loads and saves: how they are opened, and by which method their bytes move.
//
// Threads: the same rules as UniqueFd.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "contract/tensors/model.h"
#include "platform/base/file_stamp.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "platform/transfer/file_way.h"
#include "platform/transfer/transfer_engine.h"
#include "runtime/client/files/transfer.h"
#include "runtime/client/wait.h"

namespace gpushm::client {

struct OpenFile {
  UniqueFd own;             // Unless the caller's descriptor is used as it is.
  int fd = -1;              // `own`, or the caller's.
  FilePlan plan;            // O_DIRECT is set on `fd` if the plan needs it.
  uint64_t size_bytes = 0;  // For a load: the file's size, or 0 for a stream.
  std::string name;         // For messages.

  bool is_stream() const { return plan.way == FileWay::kStream; }
};

// For tensors::OpenModel. kNotFound also says which link on the way leads nowhere.
Result<UniqueFd> OpenPath(const std::string& path);

Result<OpenFile> OpenToLoad(const TransferFile& from, FileWay asked);

// How often a load looks whether what it waits for is there. No event comes from NFS and FUSE.
inline constexpr int kLookMs = 1000;

// What a load brings: one file as it is, or the files of a model, whose tensors have places of
// their own in the buffer. docs/design/loading.md says when it is whole.
struct LoadSource {
  struct Part {
    OpenFile file;
    std::vector<TransferSegment> segments;  // Empty: the file as it is.
  };
  // The codes of model.h, also for a file as it is.
  static Result<LoadSource> Open(const TransferFile& from, const TransferOptions& options);
  // Waits for what may still come, until wait.condition: then kTimeout. `going` gets what it waits
  // for, before each pause. It may be empty; its failure ends the wait.
  static Result<LoadSource> Await(const TransferFile& from, const TransferOptions& options,
                                  const Wait& wait,
                                  const std::function<Result<void>(const Status& why)>& going = {});

  bool is_stream() const { return parts.front().file.is_stream(); }
  bool has_tensors() const { return !table.empty(); }

  // After the last byte. kBusy: a file is not what it was before the first one.
  Result<void> CheckUnchanged() const;
  // How long CheckUnchanged must go on to be true; 0 if an announced size, or a header, says that
  // the file is whole.
  int64_t UnsettledMs() const;
  // kInvalidArgument: a stream brought nothing, or other than was announced.
  Result<void> CheckStream(const Announced& announced, uint64_t bytes) const;

  std::vector<Part> parts;    // At least one.
  uint64_t file_bytes = 0;    // Of all files; 0 for a stream.
  uint64_t buffer_bytes = 0;  // What the buffer must have room for; 0 for a stream of any size.
  std::vector<std::byte> table{};  // The description; empty for a file as it is.
  std::string name;                // For messages.
  TransferFile from;               // To open it again.
  tensors::FilesRead read;         // Empty for a stream, and for a descriptor.
  std::optional<FileStamp> stamp;  // Of a descriptor's file.
  // A file that nothing announces: when it changed last, and since when it has been the same.
  struct Settling {
    int64_t modified_ns = 0;  // Of CLOCK_REALTIME.
    int64_t opened_ns = 0;    // Of CLOCK_MONOTONIC.
  };
  std::optional<Settling> settling;
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
