// Sync pages of signals, barriers and rings: making them, and ending the cells of participants that
// are gone (Broker's members; see broker.h).
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <set>
#include <utility>
#include <vector>

#include "contract/sync/page.h"
#include "platform/base/alarm.h"
#include "platform/base/clock.h"
#include "platform/base/sealed_memory.h"
#include "platform/daemon/log.h"
#include "sidecar/broker/broker.h"

namespace gpushm::broker {
namespace {

struct MappedPage {
  Mapping mapping;
  sync::Page page;
};

// The broker keeps no page mapped, because it rarely ends a participant.
Result<Mapping> Map(int descriptor) {
  struct stat file{};
  if (fstat(descriptor, &file) != 0) return FailSystem(errno, "stat a sync page");
  const auto bytes = static_cast<size_t>(file.st_size);
  void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (address == MAP_FAILED) return FailSystem(errno, "map a sync page");
  return Mapping(address, bytes);
}

Result<MappedPage> MapPage(int descriptor) {
  Result<Mapping> mapping = Map(descriptor);
  if (!mapping) return std::unexpected(mapping.error());
  Result<sync::Page> page = sync::Page::Look(mapping->address(), mapping->bytes());
  if (!page) return std::unexpected(page.error());
  return MappedPage{std::move(*mapping), *page};
}

// Zeroed: it has no owner and no header yet.
Result<Memory> MakePageMemory(uint64_t bytes) {
  auto made = MakeSealed("page", bytes, Writers::kAll);
  if (!made) return std::unexpected(made.error());
  Memory memory;
  memory.transport = protocol::Transport::kHost;
  memory.pooled = false;
  memory.descriptor = std::move(made->fd);
  return memory;
}

Result<Memory> MakeSignalMemory(uint64_t bytes) {
  Result<Memory> memory = MakePageMemory(bytes);
  if (!memory) return memory;
  const Result<Mapping> mapping = Map(memory->descriptor.get());
  if (!mapping) return std::unexpected(mapping.error());
  sync::Page::Make(mapping->address(), mapping->bytes(), sync::Kind::kSignal, /*cells=*/1,
                   /*body_bytes=*/0, {});
  return memory;
}

}  // namespace

// The page is complete and shown, but has no owner: a waiter can open it at once, and a writer
// claims it.
Result<void> Broker::MakeDeclaredSignals(const std::set<std::string>& settled) {
  for (const annotations::SignalSpec& spec : options_.config.pod.signals) {
    if (settled.contains(spec.name)) continue;
    const auto ticket = ledger_->BeginDeclared(spec, sync::BytesFor(/*cells=*/1, 0));
    if (!ticket) return std::unexpected(ticket.error());
    Result<Memory> memory = MakeSignalMemory(ticket->mapped_bytes);
    if (!memory) {
      ledger_->Abort(*ticket);
      return std::unexpected(memory.error().WithContext(Concat("signal \"", spec.name, '"')));
    }
    const auto granted = ledger_->Commit(*ticket, std::move(*memory), true, UnixNs());
    GPUSHM_ASSERT(granted.has_value());
  }
  return {};
}

Result<void> Broker::OnMakePage(Request& request, const protocol::MakePageRequest& body) {
  if (draining_) return Fail(Code::kUnavailable, "the sidecar is shutting down");
  Policy policy;
  policy.creator = request.client.container;
  policy.writers_all = (body.flags & protocol::kFlagWritersAll) != 0;
  policy.one_writer = (body.flags & protocol::kFlagOneWriter) != 0;
  policy.until_unused = (body.flags & protocol::kFlagUntilUnused) != 0;
  policy.on_writer_exit = protocol::OnWriterExit::kKeep;  // Its cells show who is gone.
  const auto ticket =
      ledger_->BeginPage(request.client, std::string(protocol::FromNameField(body.name)),
                         body.size_bytes, policy, body.after_generation);
  if (!ticket) return std::unexpected(ticket.error());
  Result<Memory> memory = MakePageMemory(ticket->mapped_bytes);
  if (!memory) {
    ledger_->Abort(*ticket);
    return std::unexpected(memory.error());
  }
  const auto grant = ledger_->Commit(*ticket, std::move(*memory), /*client_alive=*/true, UnixNs());
  Apply();
  if (!grant) return std::unexpected(grant.error());
  ReplyMade(request.client, request.to, *grant);
  return {};
}

// The number is stored before somebody gets the alarm and looks at the page. It is the epoch,
// because a page has at most one alarm of each broker. It stays until the page is gone: nobody
// keeps account of who still waits.
Result<void> Broker::OnAlarm(Request& request, const protocol::AlarmRequest& body) {
  Memory* page = nullptr;
  if (body.lease_id != 0) {
    const auto memory = ledger_->MemoryOf(request.client, body.lease_id);
    if (!memory || !(*memory)->is_page()) {
      return Fail(Code::kNotFound, Concat("lease ", body.lease_id,
                                          " is not one of this client's on a signal, barrier or "
                                          "ring"));
    }
    page = *memory;
  }
  UniqueFd& alarm = page != nullptr ? page->alarm : name_alarms_[request.client.container];
  if (!alarm) {
    Result<UniqueFd> made = MakeAlarm();
    if (!made) return std::unexpected(made.error());
    alarm = std::move(*made);
  }
  if (page != nullptr) {
    const auto mapped = MapPage(page->descriptor.get());
    if (!mapped) return Fail(Code::kInvalidArgument, mapped.error().what());
    mapped->page.alarm().store(epoch_);
  }
  server_->Reply(request.to, protocol::AlarmReply{.number = page != nullptr ? epoch_ : 0},
                 alarm.get());
  return {};
}

// Runs before the plugin is told, because a successor of this broker must not miss one.
void Broker::EndParticipants() {
  for (const Ledger::EndedParticipant& ended : ledger_->TakeEndedParticipants()) {
    const auto mapped = MapPage(ended.page);
    if (!mapped) {
      LogError("page-not-mapped", {{"reason", mapped.error().ToString()}});
      continue;
    }
    sync::EndCellsOf(mapped->page, ended.lease_id,
                     ended.died ? sync::CellState::kDied : sync::CellState::kLeft);
    if (ended.alarm >= 0) RingAlarm(ended.alarm);
  }
}

// For participants whose end the earlier broker saw, but which it did not mark before it was
// killed.
void Broker::EndForgottenParticipants() {
  const Leases& leases = ledger_->leases();
  for (const auto& [number, generation] : ledger_->generations().all()) {
    if (!generation.memory.is_page()) continue;
    const auto mapped = MapPage(generation.memory.descriptor.get());
    if (!mapped) continue;  // Its maker was killed before it wrote the page's header.
    std::set<uint64_t> held;
    for (const uint64_t id : leases.ByName(generation.buffer).leases) {
      if (leases.At(id).generation == number) held.insert(id);
    }
    sync::EndCellsOfOthers(mapped->page, held);
    // The earlier broker's alarm. Those who waited for it will come here.
    mapped->page.alarm().store(0);
  }
}

}  // namespace gpushm::broker
