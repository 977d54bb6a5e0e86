// Looking up, listing and waiting: what the registry answers, and the broker's word on itself.
#include <algorithm>

#include "runtime/client/client.h"

namespace gpushm::client {

using protocol::Kind;
using registry::BufferRecord;
using registry::BufferState;

Result<registry::Found> Client::Lookup(std::string_view name) const {
  return session_.registry().Read(
      [&](const registry::RegistryReader& reader) { return reader.Find(name); });
}

Result<std::vector<BufferRecord>> Client::List() {
  DoChores();
  session_.NoticeLoss();
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

Result<Client::Seen> Client::Await(std::string_view name, const Judge& judge, const Wait& wait) {
  int64_t sleeps_since_ns = 0;
  Result<Seen> seen = LookUntil(name, judge, wait, &sleeps_since_ns);
  if (sleeps_since_ns == 0) return seen;
  if (seen) counters_.Add(protocol::Counter::kWaits);
  counters_.Add(protocol::Counter::kWaitNs, static_cast<uint64_t>(MonotonicNs() - sleeps_since_ns));
  if (!seen && seen.error().code() == Code::kTimeout) {
    counters_.Add(protocol::Counter::kWaitsTimedOut);
  }
  return seen;
}

Result<Client::Seen> Client::LookUntil(std::string_view name, const Judge& judge, const Wait& wait,
                                       int64_t* sleeps_since_ns) {
  const auto quoted = [&] { return Concat("buffer \"", name, "\""); };
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
    const bool answers = session_.NoticeLoss();
    if (session_.registry().Share() != reader) continue;
    if (wait.condition.Passed()) {
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

Result<BufferRecord> Client::WaitFor(std::string_view name, uint64_t min_generation,
                                     const Wait& wait) {
  if (auto valid = protocol::CheckName(name, "name"); !valid) {
    return std::unexpected(valid.error());
  }
  DoChores();
  const Judge judge = [&](const BufferRecord& record) -> Verdict {
    if (record.generation < min_generation) {
      return {Verdict::Kind::kNotYet,
              Status(Code::kNotFound, Concat("its generation is ", record.generation, ", not yet ",
                                             min_generation))};
    }
    switch (record.state) {
      case BufferState::kLoading:
        return {Verdict::Kind::kNotYet,
                Status(Code::kLoading, Concat(record.loaded_bytes, " of ", record.size_bytes,
                                              " bytes are loaded"))};
      case BufferState::kFailed:
        return {Verdict::Kind::kFinal,
                Status(Code::kSystem, Concat("buffer \"", name, "\": its content failed to load"),
                       "gpushm_attach and the sidecar's log say why")};
      default:
        return {};
    }
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
  DoChores();
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
  DoChores();
  const Result<SessionLock> lock = session_.Lock(wait.answer);
  if (!lock) return std::unexpected(lock.error());
  return session_.Ask<protocol::BrokerInfoReply>(*lock, Kind::kBrokerInfo,
                                                 protocol::BrokerInfoRequest{}, wait.answer,
                                                 {.loss = Call::Loss::kRepeatable});
}

}  // namespace gpushm::client
