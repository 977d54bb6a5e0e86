// Looking up, listing and waiting: answers from the registry and from the broker.
//
// Threads: any thread may call any function.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "contract/registry/reader.h"
#include "platform/base/status.h"
#include "runtime/client/registry_handle.h"
#include "runtime/client/session.h"
#include "runtime/client/wait.h"

namespace gpushm::client {

class Client;

Result<registry::Found> Lookup(const Client& client, std::string_view name);

struct WithReason {
  registry::BufferRecord record;
  std::string reason;  // As from RegistryReader::ReasonOf.
};
Result<WithReason> LookupReason(const Client& client, std::string_view name);

// By name.
Result<std::vector<registry::BufferRecord>> List(Client* client);

// What a name must refer to, so that a wait for it ends.
struct Wanted {
  std::optional<bool> page{};  // The page of a signal, barrier or ring, or a buffer; empty: either.
  uint64_t generation = 0;     // If not 0, exactly this one: another one is kStale.
  uint64_t min_generation = 0;  // At least this one.
  enum class Content { kAny, kLoaded, kGood };
  Content content =
      Content::kLoaded;    // kLoaded: not LOADING. kGood: nor FAILED, which ends the wait.
  bool described = false;  // Has a description, or failed to load.
  // For errors: what the caller requested, if that is not the buffer of this name; and how to get
  // another generation.
  std::string_view kind = "buffer";
  std::string_view called{};
  std::string_view other_generation = "look up the current generation, or attach without one";
};
struct Seen {
  registry::Found found;
  RegistryHandle::Reader reader;
};
Result<Seen> Await(Client* client, std::string_view name, const Wanted& wanted, const Wait& wait);

Result<std::vector<protocol::HolderEntry>> Holders(Client* client, std::string_view name,
                                                   const Wait& wait);
Result<protocol::BrokerInfoReply> Broker(Client* client, const Wait& wait);
// The pod's, by number.
Result<std::vector<protocol::GpuEntry>> Gpus(Client* client, const Wait& wait);
Result<std::vector<protocol::GpuEntry>> AskForGpus(Session* session, const SessionLock& lock,
                                                   const Wait& wait);

}  // namespace gpushm::client
