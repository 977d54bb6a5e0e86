// Loading buffers from files and saving them.
//
// Threads: any thread may call any function.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "platform/base/digest.h"
#include "platform/base/status.h"
#include "platform/transfer/file_way.h"
#include "platform/transfer/transfer_engine.h"
#include "runtime/client/attachment.h"
#include "runtime/client/wait.h"

namespace gpushm::client {

class Client;

// Same numbers as gpushm_format.
enum class Format : uint32_t { kAuto = 0, kRaw = 1, kTensors = 2 };

// Where bytes come from or go to: a path, or a descriptor, which the caller keeps.
struct TransferFile {
  std::optional<std::string> path;
  int descriptor = -1;
};

// What the caller says of the content that is to be loaded.
struct Announced {
  uint64_t bytes = 0;  // Of the file, all files of a model, or the stream; 0: nothing is said.
  Digest digest{};     // Empty: nothing is said.
};

struct TransferOptions {
  // Chunks, threads and the requested method. The rest is set for each file.
  TransferJob job{.way = FileWay::kAuto};
  bool whole = false;  // For a save: the whole buffer, not only its content.
  Format format = Format::kAuto;
  Announced announced{};  // For a load.
  // Returning false stops the transfer. May be empty.
  std::function<bool(uint64_t done_bytes, uint64_t total_bytes)> progress{};
};

struct TransferOutcome {
  TransferReport report{};
  FileReason reason = FileReason::kUnknown;  // For the method.
  int64_t elapsed_ns = 0;                    // Of the whole call.
  Digest digest{};                           // Of what was loaded, if it was made.
};

Result<TransferOutcome> Load(Client* client, std::string_view name, const TransferFile& from,
                             const TransferOptions& options, const Wait& wait);
Result<TransferOutcome> Save(Client* client, std::string_view name, const TransferFile& to,
                             const TransferOptions& options, const Wait& wait);
// Into and from the attached generation, published or not.
Result<TransferOutcome> Load(Attachment* attachment, const TransferFile& from,
                             const TransferOptions& options, const Wait& wait);
Result<TransferOutcome> Save(Attachment* attachment, const TransferFile& to,
                             const TransferOptions& options, const Wait& wait);

}  // namespace gpushm::client
