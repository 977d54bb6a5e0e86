// From a name to memory in this process: look (names.h), ask the broker for a lease, map what
// comes.
//
// Threads: any thread may call any function.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "contract/protocol/messages.h"
#include "contract/registry/record.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "platform/driver/device.h"
#include "runtime/client/attachment.h"
#include "runtime/client/names.h"
#include "runtime/client/peers.h"
#include "runtime/client/session.h"
#include "runtime/client/wait.h"

namespace gpushm::client {

class Client;

struct AttachOptions {
  Access access = Access::kRead;
  uint64_t generation = 0;
  // Also accepts a buffer that is loading or failed to load: for the process that fills it.
  bool any_state = false;
  // Attaches the page of a signal, barrier or ring, not a buffer.
  bool page = false;
  // Not shared with other attaches of this process: for what the library itself holds, so that the
  // application cannot advance it.
  bool own = false;
  // Also waits until the generation is at least this.
  uint64_t min_generation = 0;
  uint64_t peer_devices = 0;  // Bit i: ordinal i of this process.
  bool stage = false;         // If the one of them cannot reach the bytes, it gets a copy.
  // For errors: what the caller requested, if that is not the buffer of this name.
  std::string_view kind = "buffer";
  std::string_view called{};
};

Result<Attachment*> Attach(Client* client, std::string_view name, const AttachOptions& options,
                           const Wait& wait);
// Puts a newer generation in place of the attached one (advance.cc).
Result<void> Advance(Attachment* attachment, std::span<const CUstream> streams, uint64_t generation,
                     const Wait& wait);

// A lease, the memory that came with it, and how this process uses both.
struct Grant {
  registry::BufferRecord record;  // As the registry shows it, or as it was made.
  protocol::AttachReply reply{};
  std::vector<UniqueFd> descriptors{};
  std::vector<uint64_t> block_bytes{};  // With blocks: one for each descriptor.
  Access access = Access::kReadWrite;
  DeviceInfo device{};  // The memory's GPU; none for a page.
  PeerPlan peers{};
  bool is_page() const { return (record.flags & registry::kRecordPage) != 0; }
  bool is_cuipc() const { return record.transport == Transport::kCuIpc; }
};

// Asks the broker for a lease on what the registry shows.
Result<Grant> AskForLease(Client* client, const SessionLock& lock,
                          const registry::BufferRecord& record, const AttachOptions& options,
                          const Wait& wait);

// Checks a grant, maps it and enters it in the table (map.cc). Ends its lease if that fails.
// `share`: further attaches may return the attachment.
Result<Attachment*> Enter(Client* client, const SessionLock& lock, const Grant& grant,
                          bool unpublished, bool share, const Wait& wait);

}  // namespace gpushm::client
