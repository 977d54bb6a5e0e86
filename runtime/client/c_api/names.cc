// The C ABI: connecting and looking up.
#include <cstdlib>

#include "contract/limits.h"
#include "contract/registry/host_list.h"
#include "platform/base/name.h"
#include "runtime/client/c_api/support.h"
#include "runtime/client/names.h"

namespace gpushm::client {
namespace {

// Apart from GPUSHM_DRIVER, this file is the only one in which the library reads the environment.
std::string FolderFromEnvironment() {
  const char* folder = std::getenv("GPUSHM_DIR");
  return folder == nullptr || folder[0] == '\0' ? protocol::kDefaultFolder : folder;
}

// The injector sets both in pods that use another pod's claim.
void AddPod(Session::Place* place) {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  std::string pod = variable("GPUSHM_POD");
  std::string container = variable("GPUSHM_CONTAINER");
  if (!IsDnsSubdomain(pod) || !IsDnsLabel(container)) return;
  place->pod = std::move(pod);
  place->container = std::move(container);
}

Result<Session::Place> PlaceOf(const gpushm_open_options& options) {
  if (options.pod_uid == nullptr) {
    const std::string folder = options.folder == nullptr ? FolderFromEnvironment() : options.folder;
    Session::Place place{.socket_path = Concat(folder, "/", protocol::kSocketName)};
    AddPod(&place);
    return place;
  }
  if (!registry::IsPodUid(options.pod_uid)) {
    return Fail(Code::kInvalidArgument, Concat("invalid pod UID \"", options.pod_uid, "\""),
                "use the pod's metadata.uid, which kubectl get pod -o yaml shows");
  }
  const std::string folder = options.folder == nullptr ? registry::kHostListDir : options.folder;
  // A pod with gpushm.io/host-ipc has a list. It may still be starting, so only errors that waiting
  // cannot fix end this call.
  if (const auto list = registry::ReadHostList(folder, options.pod_uid); !list) {
    if (list.error().code() == Code::kDenied) return std::unexpected(list.error());
  }
  return Session::Place{
      .socket_path = Concat(folder, "/", registry::HostSocketFile(options.pod_uid)),
      .owned_file = Concat(folder, "/", registry::HostListFile(options.pod_uid))};
}

gpushm_info ToInfo(const registry::BufferRecord& record) {
  gpushm_info info{};
  static_assert(sizeof info.name == sizeof record.name);  // Both are padded with NUL.
  std::memcpy(info.name, &record.name, sizeof info.name);
  info.generation = record.generation;
  info.size_bytes = record.size_bytes;
  info.mapped_bytes = record.mapped_bytes;
  info.loaded_bytes = record.loaded_bytes;
  info.created_unix_ns = static_cast<int64_t>(record.created_unix_ns);
  std::memcpy(info.gpu_uuid, record.gpu.data(), sizeof info.gpu_uuid);
  const bool is_page = (record.flags & registry::kRecordPage) != 0;
  info.transport = is_page ? Transport::kHost : record.transport;
  info.state = record.state;
  std::memcpy(info.creator, &record.creator, sizeof info.creator);
  info.content_bytes = registry::ContentBytes(record);
  info.description_bytes = record.description_bytes;
  info.gpu = record.gpu_number;
  CopyDigest(record.digest, info.digest);
  return info;
}

gpushm_holder ToHolder(const protocol::HolderEntry& entry) {
  gpushm_holder holder{};
  CopyText(holder.buffer, protocol::FromNameField(entry.buffer));
  CopyText(holder.container, protocol::FromNameField(entry.container));
  holder.generation = entry.generation;
  holder.client_id = entry.client_id;
  holder.lease_id = entry.lease_id;
  holder.access = entry.access;
  holder.since_unix_ns = entry.since_unix_ns;
  holder.peer_method = entry.peer_way;
  return holder;
}

}  // namespace
}  // namespace gpushm::client

namespace gc = gpushm::client;
using gpushm::Result;

extern "C" {

gpushm_status gpushm_open(const gpushm_open_options* options, gpushm_client** client) {
  return gc::Enter([&]() -> Result<void> {
    if (auto valid = gc::CheckArgument(client != nullptr, "client is NULL"); !valid) return valid;
    *client = nullptr;
    const auto given = gc::ReadOptions(options, "open_options");
    if (!given) return std::unexpected(given.error());
    const auto wait = gc::Wait::From(given->timeout_ms, GPUSHM_DEFAULT_TIMEOUT_MS);
    if (!wait) return std::unexpected(wait.error());
    const Result<gc::Session::Place> place = gc::PlaceOf(*given);
    if (!place) return std::unexpected(place.error());
    gc::ClientOptions opening;
    opening.place = *place;
    opening.driver_folder =
        given->driver == nullptr ? gpushm::DriverFolderFromEnvironment() : given->driver;
    auto opened = gc::Client::Open(opening, *wait);
    if (!opened) return std::unexpected(opened.error());
    *client = (*opened.value().release()).handle().As<gpushm_client>();
    return {};
  });
}

void gpushm_close(gpushm_client* client) {
  // In a child of fork() the parent's client is not found, and stays as it is: unmapping here would
  // break the parent's driver.
  const std::unique_ptr<gc::Client> closed(gc::FromHandle(client));
  if (closed == nullptr && client != nullptr)
    (void)gc::RememberWhyNot(gc::HandleKind::kClient, client);
}

gpushm_status gpushm_lookup(gpushm_client* client, const char* name, gpushm_info* info) {
  const gc::Client* const c = gc::FromHandle(client);
  if (c == nullptr) return gc::RememberWhyNot(gc::HandleKind::kClient, client);
  return gc::Enter([&]() -> Result<void> {
    if (info == nullptr) return gc::CheckArgument(false, "info is NULL");
    if (auto valid = gc::CheckStructSize(info->struct_size, "info"); !valid) return valid;
    const auto text = gc::ReadName(name);
    if (!text) return std::unexpected(text.error());
    const auto found = gc::Lookup(*c, *text);
    if (!found) return std::unexpected(found.error());
    if (info->struct_size == sizeof *info) {  // Converted in place: no copy of the whole struct.
      (new (info) gpushm_info(gc::ToInfo(found->record)))->struct_size = sizeof *info;
    } else {
      gc::WriteInfo(gc::ToInfo(found->record), info, info->struct_size);
    }
    return {};
  });
}

gpushm_status gpushm_lookup_reason(gpushm_client* client, const char* name, gpushm_reason* reason) {
  const gc::Client* const c = gc::FromHandle(client);
  if (c == nullptr) return gc::RememberWhyNot(gc::HandleKind::kClient, client);
  return gc::Enter([&] {
    return gc::FillInfo(reason, "reason", [&](gpushm_reason* filled) -> Result<void> {
      const auto text = gc::ReadName(name);
      if (!text) return std::unexpected(text.error());
      const auto found = gc::LookupReason(*c, *text);
      if (!found) return std::unexpected(found.error());
      filled->generation = found->record.generation;
      filled->state = found->record.state;
      filled->status = gpushm::registry::ReasonCode(found->record);
      gc::CopyText(filled->text, found->reason);
      return {};
    });
  });
}

gpushm_status gpushm_list(gpushm_client* client, gpushm_info* infos, size_t capacity,
                          size_t* count) {
  return gc::EnterClient(client, [&](gc::Client& c) -> Result<void> {
    const Result<size_t> stride = gc::Stride(infos, capacity, count, "infos[0]");
    if (!stride) return std::unexpected(stride.error());
    const auto records = gc::List(&c);
    if (!records) return std::unexpected(records.error());
    return gc::WriteArray(*records, infos, capacity, count, *stride, gc::ToInfo);
  });
}

gpushm_status gpushm_wait(gpushm_client* client, const char* name, uint64_t min_generation,
                          const gpushm_wait_options* options, gpushm_info* info) {
  return gc::EnterClient(client, [&](gc::Client& c) -> Result<void> {
    if (info != nullptr) {
      if (auto valid = gc::CheckStructSize(info->struct_size, "info"); !valid) return valid;
    }
    const auto given = gc::ReadOptions(options, "wait_options");
    if (!given) return std::unexpected(given.error());
    const auto wait = gc::Wait::From(given->timeout_ms, GPUSHM_DEFAULT_TIMEOUT_MS);
    if (!wait) return std::unexpected(wait.error());
    const auto text = gc::ReadName(name);
    if (!text) return std::unexpected(text.error());
    if (auto valid = gpushm::protocol::CheckName(*text, "name"); !valid) return valid;
    c.attachments().DoChores(wait->answer);
    const auto seen =
        gc::Await(&c, *text,
                  {.min_generation = min_generation, .content = gc::Wanted::Content::kGood}, *wait);
    if (!seen) return std::unexpected(seen.error());
    if (info != nullptr) {
      gc::WriteInfo(gc::ToInfo(seen->found.record), info, info->struct_size);
    }
    return {};
  });
}

gpushm_status gpushm_list_holders(gpushm_client* client, const char* name, gpushm_holder* holders,
                                  size_t capacity, size_t* count) {
  return gc::EnterClient(client, [&](gc::Client& c) -> Result<void> {
    const Result<size_t> stride = gc::Stride(holders, capacity, count, "holders[0]");
    if (!stride) return std::unexpected(stride.error());
    const auto text = gc::ReadName(name == nullptr ? "" : name);
    if (!text) return std::unexpected(text.error());
    const auto entries = gc::Holders(&c, *text, gc::Wait::ForMs(GPUSHM_DEFAULT_TIMEOUT_MS));
    if (!entries) return std::unexpected(entries.error());
    return gc::WriteArray(*entries, holders, capacity, count, *stride, gc::ToHolder);
  });
}

gpushm_status gpushm_list_gpus(gpushm_client* client, gpushm_gpu_info* infos, size_t capacity,
                               size_t* count) {
  return gc::EnterClient(client, [&](gc::Client& c) -> Result<void> {
    const Result<size_t> stride = gc::Stride(infos, capacity, count, "infos[0]");
    if (!stride) return std::unexpected(stride.error());
    const auto gpus = gc::Gpus(&c, gc::Wait::ForMs(GPUSHM_DEFAULT_TIMEOUT_MS));
    if (!gpus) return std::unexpected(gpus.error());
    uint32_t number = 0;
    return gc::WriteArray(*gpus, infos, capacity, count, *stride,
                          [&](const gpushm::protocol::GpuEntry& entry) {
                            gpushm_gpu_info info{};
                            std::memcpy(info.gpu_uuid, entry.gpu_uuid.data(), sizeof info.gpu_uuid);
                            info.pool_bytes = entry.pool_bytes;
                            info.used_bytes = entry.used_bytes;
                            info.gpu = number++;
                            info.lost = entry.lost;
                            return info;
                          });
  });
}

gpushm_status gpushm_broker_get_info(gpushm_client* client, gpushm_broker_info* info) {
  return gc::EnterClient(client, [&](gc::Client& c) -> Result<void> {
    if (info == nullptr) return gc::CheckArgument(false, "info is NULL");
    if (auto valid = gc::CheckStructSize(info->struct_size, "info"); !valid) return valid;
    const auto reply = gc::Broker(&c, gc::Wait::ForMs(GPUSHM_DEFAULT_TIMEOUT_MS));
    if (!reply) return std::unexpected(reply.error());
    gpushm_broker_info filled{};
    gc::CopyText(filled.container, gpushm::protocol::FromNameField(reply->container));
    std::memcpy(filled.gpu_uuid, reply->gpu_uuid.data(), sizeof filled.gpu_uuid);
    filled.pool_bytes = reply->pool_bytes;
    filled.used_bytes = reply->used_bytes;
    filled.broker_epoch = reply->epoch;
    filled.protocol = reply->version;
    filled.clients = reply->clients;
    filled.leases = reply->leases;
    filled.simulated = reply->simulated;
    gc::WriteInfo(filled, info, info->struct_size);
    return {};
  });
}

}  // extern "C"
