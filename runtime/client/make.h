// Creating, replacing, publishing and deleting.
//
// Threads: any thread may call any function.
#pragma once

#include <cstdint>
#include <string_view>

#include "contract/protocol/messages.h"
#include "platform/base/status.h"
#include "runtime/client/attachment.h"
#include "runtime/client/wait.h"

namespace gpushm::client {

struct MakeOptions {
  bool writers_all = false;
  bool one_writer = false;
  OnWriterExit on_writer_exit = OnWriterExit::kMark;
  bool unpublished = false;
  uint64_t after_generation = 0;  // Of a page: see protocol::MakePageRequest.
  bool until_unused = false;      // See protocol::kFlagUntilUnused.
  uint32_t gpu = 0;               // Number among the pod's GPUs. A replacement stays where it is.
};

// If `attach` is false, nullptr is returned. With Replace, `size_bytes` 0 keeps the size.
Result<Attachment*> Create(Client* client, std::string_view name, uint64_t size_bytes,
                           const MakeOptions& options, bool attach, const Wait& wait);
Result<Attachment*> Replace(Client* client, std::string_view name, uint64_t size_bytes,
                            const MakeOptions& options, bool attach, const Wait& wait);
// Create or Replace, not counted.
Result<Attachment*> Make(Client* client, protocol::Kind kind, std::string_view name,
                         uint64_t size_bytes, const MakeOptions& options, bool attach,
                         const Wait& wait);
// The page of a signal, barrier or ring, zeroed and unpublished. kAlreadyExists, kStale, kBusy:
// another process was first.
Result<Attachment*> MakePage(Client* client, std::string_view name, uint64_t size_bytes,
                             const MakeOptions& options, const Wait& wait);
Result<void> Publish(Attachment* attachment, const Wait& wait);
Result<void> Delete(Client* client, std::string_view name, const Wait& wait);

}  // namespace gpushm::client
