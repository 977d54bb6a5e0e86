// Looking up, listing and waiting: what the registry answers, and the broker's word on itself.
#include <algorithm>

#include "contract/limits.h"
#include "platform/base/nearest.h"
#include "runtime/client/client.h"

namespace gpushm::client {

using protocol::Kind;
using registry::BufferRecord;
using registry::BufferState;

namespace {

// A name that is not there: mostly it is misspelt.
Status NoSuchName(const Status& not_found, std::string_view name,
                  const registry::RegistryReader& reader) {
  const Result<std::vector<BufferRecord>> records = reader.List();
  if (!records) return not_found;
  std::vector<std::string_view> names;
  for (const BufferRecord& record : *records) {
    names.push_back(record.name.view());
    if (names.back() != name) continue;  // Of a ring that is not there, say.
    const bool is_page = (record.flags & registry::kRecordPage) != 0;
    return {not_found.code(),
            Concat(not_found.what(), ", only a ", is_page ? "signal or barrier" : "buffer",
                   " of that name"),
            "start its writer, or open what is there"};
  }
  std::string meant;
  for (const std::string_view similar : Similar(name, names)) {
    meant += Concat(meant.empty() ? "did you mean \"" : " or \"", similar, "\"");
  }
  if (meant.empty()) return not_found;
  return {not_found.code(), not_found.what(), Concat(meant, "? ", not_found.remedy())};
}

}  // namespace

Result<registry::Found> Client::Lookup(std::string_view name) const {
  return session_.registry().Read(
      [&](const registry::RegistryReader& reader) { return reader.Find(name); });
}

Result<std::vector<BufferRecord>> Client::List() {
  const Deadline deadline = Deadline::AfterMs(kAnswerMs);
  DoChores(deadline);
  session_.NoticeLoss(deadline);
  const RegistryHandle::Reader reader = session_.registry().Share();
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

Result<Client::Seen> Client::Await(std::string_view name, const Judge& judge, const Wait& wait,
                                   const Wanted& wanted) {
  int64_t sleeps_since_ns = 0;
  Result<Seen> seen = LookUntil(name, judge, wait, wanted, &sleeps_since_ns);
  if (sleeps_since_ns == 0) return seen;
  if (seen) counters_.Add(protocol::Counter::kWaits);
  counters_.Add(protocol::Counter::kWaitNs, static_cast<uint64_t>(MonotonicNs() - sleeps_since_ns));
  if (!seen && seen.error().code() == Code::kTimeout) {
    counters_.Add(protocol::Counter::kWaitsTimedOut);
  }
  return seen;
}

Result<Client::Seen> Client::LookUntil(std::string_view name, const Judge& judge, const Wait& wait,
                                       const Wanted& wanted, int64_t* sleeps_since_ns) {
  const std::string_view called = wanted.called.empty() ? name : wanted.called;
  const auto quoted = [&] { return Concat(wanted.kind, " \"", called, "\""); };
  for (;;) {
    const RegistryHandle::Reader reader = session_.registry().Share();
    const uint64_t version = reader->table_version();
    // Its loss moves the table version, too: who waits below is woken.
    if (reader->device_lost()) {
      return Fail(Code::kDeviceLost, Concat("the GPU of ", quoted(), " is lost"),
                  "the GPU must be reset or the node drained");
    }
    Result<registry::Found> found = reader->Find(name);
    std::optional<Status> not_yet;
    if (found) {
      Verdict verdict = judge(found->record);
      if (verdict.kind == Verdict::Kind::kAccept) return Seen{*found, reader};
      if (verdict.kind == Verdict::Kind::kFinal) return std::unexpected(*verdict.reason);
      not_yet = std::move(verdict.reason);
    } else {
      const Code code = found.error().code();
      if (code != Code::kNotFound && code != Code::kContended) {
        return std::unexpected(found.error());
      }
      not_yet = found.error();
    }
    const bool answers = session_.NoticeLoss(wait.answer);
    if (session_.registry().Share() != reader) continue;
    if (wait.condition.Passed()) {
      if (!found && not_yet->code() == Code::kNotFound) {
        not_yet = NoSuchName(Status(Code::kNotFound, Concat("no ", quoted()), not_yet->remedy()),
                             called, *reader);
      }
      if (wait.dont_wait) return std::unexpected(*not_yet);
      if (!answers) {
        return Fail(Code::kUnavailable, Concat("no broker answers while waiting for ", quoted()),
                    "is the sidecar running, and is its folder mounted here?");
      }
      return Fail(Code::kTimeout, Concat("waited in vain for ", quoted(), ": ", not_yet->what()),
                  not_yet->remedy());
    }
    if (*sleeps_since_ns == 0) *sleeps_since_ns = MonotonicNs();
    reader->WaitForChange(version, wait.condition);
  }
}

Client::Verdict Client::HasContent(const BufferRecord& record) {
  if (record.state != BufferState::kLoading) return {};
  return {Verdict::Kind::kNotYet,
          Status(Code::kLoading,
                 Concat(record.loaded_bytes, " of ", record.size_bytes, " bytes are loaded"),
                 "allow more time for it")};
}

Result<BufferRecord> Client::WaitFor(std::string_view name, uint64_t min_generation,
                                     const Wait& wait) {
  if (auto valid = protocol::CheckName(name, "name"); !valid) {
    return std::unexpected(valid.error());
  }
  DoChores(wait.answer);
  const Judge judge = [&](const BufferRecord& record) -> Verdict {
    if (record.generation < min_generation) {
      return {Verdict::Kind::kNotYet,
              Status(Code::kNotFound, Concat("its generation is ", record.generation, ", not yet ",
                                             min_generation))};
    }
    if (record.state == BufferState::kFailed) {
      return {Verdict::Kind::kFinal,
              Status(Code::kSystem, Concat("buffer \"", name, "\": its content failed to load"),
                     "gpushm_attach and the sidecar's log say why")};
    }
    return HasContent(record);
  };
  Result<Seen> seen = Await(name, judge, wait);
  if (!seen) return std::unexpected(seen.error());
  return seen->found.record;
}

Result<std::vector<protocol::HolderEntry>> Client::Holders(std::string_view name,
                                                           const Wait& wait) {
  if (!name.empty()) {
    if (auto valid = protocol::CheckName(name, "name"); !valid) {
      return std::unexpected(valid.error());
    }
  }
  DoChores(wait.answer);
  const Result<SessionLock> lock = session_.Lock(wait.answer);
  if (!lock) return std::unexpected(lock.error());
  std::vector<protocol::HolderEntry> holders;
  protocol::HoldersRequest request{};
  request.name = protocol::ToNameField(name);
  for (;;) {
    const auto reply = session_.Ask<protocol::HoldersReply>(
        *lock, Kind::kHolders, request, wait.answer, {.loss = Call::Loss::kRepeatable});
    if (!reply) return std::unexpected(reply.error());
    for (uint32_t i = 0; i < reply->count; ++i) {
      const protocol::HolderEntry& entry = reply->entries[i];
      if (entry.lease_id <= request.after_lease_id || holders.size() >= limits::kLeases) {
        session_.Drop(*lock);
        return Fail(Code::kCorrupt, "a peer broke the protocol: holders are out of order");
      }
      request.after_lease_id = entry.lease_id;
      holders.push_back(entry);
    }
    if (reply->count < protocol::kHoldersPerReply) return holders;
  }
}

Result<protocol::BrokerInfoReply> Client::Broker(const Wait& wait) {
  DoChores(wait.answer);
  const Result<SessionLock> lock = session_.Lock(wait.answer);
  if (!lock) return std::unexpected(lock.error());
  return session_.Ask<protocol::BrokerInfoReply>(*lock, Kind::kBrokerInfo,
                                                 protocol::BrokerInfoRequest{}, wait.answer,
                                                 {.loss = Call::Loss::kRepeatable});
}

}  // namespace gpushm::client
