#include "runtime/client/names.h"

#include <algorithm>
#include <utility>

#include "contract/limits.h"
#include "platform/base/nearest.h"
#include "runtime/client/client.h"

namespace gpushm::client {

using protocol::Kind;
using registry::BufferRecord;

namespace {

// The name does not exist; most often it is misspelt.
Status NoSuchName(const Status& not_found, std::string_view name,
                  const registry::RegistryReader& reader) {
  const Result<std::vector<BufferRecord>> records = reader.List();
  if (!records) return not_found;
  std::vector<std::string_view> names;
  for (const BufferRecord& record : *records) {
    names.push_back(record.name.view());
    if (names.back() != name) continue;  // For example, the name of a ring that does not exist.
    const bool is_page = (record.flags & registry::kRecordPage) != 0;
    return {not_found.code(),
            Concat(not_found.what(), "; there is only a ",
                   is_page ? "signal, barrier, ring or queue" : "buffer", " of that name"),
            "start its writer, or open the existing object with the call for its kind"};
  }
  std::string meant;
  for (const std::string_view similar : Similar(name, names)) {
    meant += Concat(meant.empty() ? "did you mean \"" : " or \"", similar, "\"");
  }
  if (meant.empty()) return not_found;
  return {not_found.code(), not_found.what(), Concat(meant, "? ", not_found.remedy())};
}

// Why a record is not what is wanted; no reason: it is. Waiting does not help if it is final.
struct Verdict {
  std::optional<Status> reason{};
  bool is_final = false;
};

Verdict Judge(const Wanted& wanted, const BufferRecord& record, const std::string& why_no_content) {
  const std::string_view name = record.name.view();
  const bool is_page = (record.flags & registry::kRecordPage) != 0;
  if (wanted.page && *wanted.page != is_page) {
    return {Status(Code::kInvalidArgument,
                   Concat('"', name, is_page ? "\" is a signal, barrier or ring" : "\" is a buffer",
                          ", not a ", wanted.kind),
                   is_page ? "open it with the call for its kind: "
                             "gpushm_signal_open, gpushm_barrier_open or gpushm_ring_open"
                           : "use another name, or open the buffer with gpushm_attach"),
            true};
  }
  if (record.generation < wanted.min_generation) {
    return {Status(Code::kNotFound, is_page
                                        ? "its writer has ended, and no other writer has opened it"
                                        : Concat("its generation is ", record.generation,
                                                 ", not yet ", wanted.min_generation))};
  }
  if (wanted.generation != 0 && record.generation != wanted.generation) {
    return {Status(Code::kStale,
                   Concat("its generation is ", record.generation, ", not ", wanted.generation),
                   std::string(wanted.other_generation)),
            true};
  }
  if (wanted.content == Wanted::Content::kAny) return {};
  if (record.state == BufferState::kFailed && wanted.content == Wanted::Content::kGood) {
    return {Status(Code::kSystem,
                   Concat("loading \"", name, "\" failed", why_no_content.empty() ? "" : ": ",
                          why_no_content),
                   "load it again: gpushmctl load"),
            true};
  }
  if (record.state == BufferState::kLoading) {
    if (!why_no_content.empty()) {
      return {
          Status(Code::kLoading, why_no_content, "do what this says, then load it, or wait again")};
    }
    return {Status(Code::kLoading,
                   Concat(record.loaded_bytes, " of ", record.size_bytes, " bytes are loaded"),
                   "use a longer timeout")};
  }
  if (wanted.described && record.description_bytes == 0 && record.state != BufferState::kFailed) {
    return {
        Status(Code::kNotFound,
               Concat("generation ", record.generation, " of \"", name, "\" has no description"),
               "load a safetensors file into it: gpushmctl load model.safetensors NAME")};
  }
  return {};
}

}  // namespace

Result<registry::Found> Lookup(const Client& client, std::string_view name) {
  return client.session().registry().Read(
      [&](const registry::RegistryReader& reader) { return reader.Find(name); });
}

Result<WithReason> LookupReason(const Client& client, std::string_view name) {
  return client.session().registry().Read(
      [&](const registry::RegistryReader& reader) -> Result<WithReason> {
        for (int i = 0; i < limits::kReadAttempts; ++i) {
          const Result<registry::Found> found = reader.Find(name);
          if (!found) return std::unexpected(found.error());
          WithReason seen{.record = found->record, .reason = reader.ReasonOf(*found)};
          const bool is_whole = seen.reason.empty() == (registry::ReasonCode(seen.record) == 0);
          if (is_whole) return seen;
        }
        return Fail(Code::kContended,
                    Concat("buffer \"", name, "\" changed during every attempt to read its reason"),
                    "try again");
      });
}

Result<std::vector<BufferRecord>> List(Client* client) {
  const Deadline deadline = Deadline::AfterMs(kAnswerMs);
  client->attachments().DoChores(deadline);
  client->session().NoticeLoss(deadline);
  const RegistryHandle::Reader reader = client->session().registry().Share();
  Result<std::vector<BufferRecord>> records = reader->List();
  for (int i = 1; i < limits::kReadAttempts && !records; ++i) {
    if (records.error().code() != Code::kContended) break;
    records = reader->List();
  }
  if (records) {
    std::sort(records->begin(), records->end(), [](const BufferRecord& a, const BufferRecord& b) {
      return a.name.view() < b.name.view();
    });
  }
  return records;
}

Result<Seen> Await(Client* client, std::string_view name, const Wanted& wanted, const Wait& wait) {
  Session& session = client->session();
  Counters& counters = client->counters();
  const std::string_view called = wanted.called.empty() ? name : wanted.called;
  const auto quoted = [&] { return Concat(wanted.kind, " \"", called, "\""); };
  int64_t sleeps_since_ns = 0;
  const auto end = [&](Result<Seen> seen) {
    if (sleeps_since_ns == 0) return seen;
    counters.Add(protocol::Counter::kWaitNs,
                 static_cast<uint64_t>(MonotonicNs() - sleeps_since_ns));
    if (seen) counters.Add(protocol::Counter::kWaits);
    if (!seen && seen.error().code() == Code::kTimeout) {
      counters.Add(protocol::Counter::kWaitsTimedOut);
    }
    return seen;
  };
  for (;;) {
    const RegistryHandle::Reader reader = session.registry().Share();
    const uint64_t version = reader->table_version();
    // Losing the GPU also changes the table version, so waiters below wake up.
    Result<registry::Found> found = reader->Find(name);
    if (reader->IsLost(found ? &found->record : nullptr)) {
      return end(Fail(Code::kDeviceLost, Concat("the GPU of ", quoted(), " is lost"),
                      "reset the GPU, or drain the node"));
    }
    std::optional<Status> not_yet;
    if (found) {
      Verdict verdict = Judge(wanted, found->record, reader->ReasonOf(*found));
      if (!verdict.reason) return end(Seen{*found, reader});
      if (verdict.is_final) return end(std::unexpected(*verdict.reason));
      not_yet = std::move(verdict.reason);
    } else {
      const Code code = found.error().code();
      if (code != Code::kNotFound && code != Code::kContended) {
        return end(std::unexpected(found.error()));
      }
      not_yet = found.error();
    }
    const bool answers = session.NoticeLoss(wait.answer);
    if (session.registry().Share() != reader) continue;
    if (wait.condition.Passed()) {
      if (!found && not_yet->code() == Code::kNotFound) {
        not_yet = NoSuchName(Status(Code::kNotFound, Concat("no ", quoted()), not_yet->remedy()),
                             called, *reader);
      }
      if (wait.dont_wait) return end(std::unexpected(*not_yet));
      if (!answers) {
        return end(Fail(Code::kUnavailable,
                        Concat("no broker answers while waiting for ", quoted()),
                        "check that the sidecar is running and that its socket "
                        "folder is mounted here; GPUSHM_DIR names that folder"));
      }
      return end(Fail(Code::kTimeout,
                      Concat("timed out waiting for ", quoted(), ": ", not_yet->what()),
                      not_yet->remedy()));
    }
    if (sleeps_since_ns == 0) sleeps_since_ns = MonotonicNs();
    reader->WaitForChange(version, wait.condition);
  }
}

Result<std::vector<protocol::HolderEntry>> Holders(Client* client, std::string_view name,
                                                   const Wait& wait) {
  if (!name.empty()) {
    if (auto valid = protocol::CheckName(name, "name"); !valid) {
      return std::unexpected(valid.error());
    }
  }
  client->attachments().DoChores(wait.answer);
  Session& session = client->session();
  const Result<SessionLock> lock = session.Lock(wait.answer);
  if (!lock) return std::unexpected(lock.error());
  std::vector<protocol::HolderEntry> holders;
  protocol::HoldersRequest request{};
  request.name = protocol::ToNameField(name);
  for (;;) {
    const auto reply = session.Ask<protocol::HoldersReply>(
        *lock, Kind::kHolders, request, wait.answer, {.loss = Call::Loss::kRepeatable});
    if (!reply) return std::unexpected(reply.error());
    for (uint32_t i = 0; i < reply->count; ++i) {
      const protocol::HolderEntry& entry = reply->entries[i];
      if (entry.lease_id <= request.after_lease_id || holders.size() >= limits::kLeases) {
        session.Drop(*lock);
        return BrokeProtocol(Concat("holders are out of order or too many: lease ", entry.lease_id,
                                    " follows lease ", request.after_lease_id, " after ",
                                    holders.size(), " of at most ", limits::kLeases, " holders"));
      }
      request.after_lease_id = entry.lease_id;
      holders.push_back(entry);
    }
    if (reply->count < protocol::kHoldersPerReply) return holders;
  }
}

Result<protocol::BrokerInfoReply> Broker(Client* client, const Wait& wait) {
  client->attachments().DoChores(wait.answer);
  const Result<SessionLock> lock = client->session().Lock(wait.answer);
  if (!lock) return std::unexpected(lock.error());
  return client->session().Ask<protocol::BrokerInfoReply>(
      *lock, Kind::kBrokerInfo, protocol::BrokerInfoRequest{}, wait.answer,
      {.loss = Call::Loss::kRepeatable});
}

Result<std::vector<protocol::GpuEntry>> Gpus(Client* client, const Wait& wait) {
  client->attachments().DoChores(wait.answer);
  const Result<SessionLock> lock = client->session().LockConnected(wait);
  if (!lock) return std::unexpected(lock.error());
  return AskForGpus(&client->session(), *lock, wait);
}

Result<std::vector<protocol::GpuEntry>> AskForGpus(Session* session, const SessionLock& lock,
                                                   const Wait& wait) {
  const auto reply = session->Ask<protocol::GpusReply>(
      lock, Kind::kGpus, protocol::GpusRequest{}, wait.answer, {.loss = Call::Loss::kRepeatable});
  if (!reply) return std::unexpected(reply.error());
  return std::vector<protocol::GpuEntry>(reply->entries.begin(),
                                         reply->entries.begin() + reply->count);
}

}  // namespace gpushm::client
