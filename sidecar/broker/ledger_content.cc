// The content of buffers: who loads, how far it is, and what a failed load leaves (Ledger's
// members; see ledger.h).
#include <utility>

#include "sidecar/broker/ledger.h"

namespace gpushm::broker {
namespace {

std::unexpected<Status> Denied(std::string what, std::string remedy) {
  return Fail(Code::kDenied, std::move(what), std::move(remedy));
}

std::string Quoted(const std::string& name) { return Concat('"', name, '"'); }

}  // namespace

Result<void> Ledger::SetContent(const Client& client, uint64_t lease_id, uint64_t loaded_bytes,
                                bool complete) {
  const Result<Lease*> lease = FindLease(client, lease_id);
  if (!lease) return std::unexpected(lease.error());
  if ((*lease)->access != Access::kReadWrite) {
    return Denied("only a writer can say what the content is", "attach for writing");
  }
  const uint64_t number = (*lease)->generation;
  const auto found = buffers_.find((*lease)->buffer);
  const bool unpublished = found != buffers_.end() && found->second.pending == number;
  if (found == buffers_.end() || (found->second.current != number && !unpublished)) {
    return Fail(Code::kStale, Concat(Quoted((*lease)->buffer), " has another generation by now"));
  }
  Buffer& buffer = found->second;
  const Memory& memory = generations_.at(number).memory;
  if (memory.is_page()) {
    return Fail(Code::kInvalidArgument, Concat(Quoted(found->first), " is no buffer"));
  }
  if (loaded_bytes > memory.size_bytes) {
    return Fail(Code::kInvalidArgument,
                Concat(loaded_bytes, " bytes of content in ", memory.size_bytes));
  }
  if (unpublished) {
    if (!complete) {
      return Fail(Code::kInvalidArgument, Concat(Quoted(found->first), " is not published"),
                  "say what it holds once that is complete");
    }
    SetContentOf(number, loaded_bytes);
    return {};
  }
  if (buffer.transferring || (buffer.loading_client != 0 && buffer.loading_client != client.id)) {
    return Fail(Code::kBusy, Concat(Quoted(found->first), " is being loaded by somebody else"),
                "wait until it is ready");
  }
  buffer.state = complete ? BufferState::kReady : BufferState::kLoading;
  buffer.loading_client = complete ? 0 : client.id;
  buffer.one_writer_loads = false;
  buffer.loaded_bytes = loaded_bytes;
  buffer.failure.clear();
  if (complete) SetContentOf(number, loaded_bytes);
  Show(found->first);
  return {};
}

void Ledger::SetContentOf(uint64_t generation, uint64_t content_bytes) {
  generations_.at(generation).content_bytes = content_bytes;
  NoteContent(generation);
}

// As the registry and the plugin are told it.
uint64_t Ledger::LoadedBytes(const Buffer& buffer) const {
  const bool there =
      buffer.state == BufferState::kReady || buffer.state == BufferState::kWriterDied;
  if (!there || buffer.current == 0) return buffer.loaded_bytes;
  return generations_.at(buffer.current).content_bytes.value_or(0);
}

uint64_t Ledger::ContentBytes(const std::string& name) const {
  return registry::ContentBytes(RecordOf(name, buffers_.at(name)));
}

bool Ledger::MayLoadFirst(const Buffer& buffer, const Client& client) const {
  return buffer.policy.loads && loaders_.contains(client.container) &&
         (buffer.state == BufferState::kLoading || buffer.state == BufferState::kFailed);
}

Result<const Memory*> Ledger::BeginTransfer(const Client& client, const std::string& name,
                                            protocol::Direction direction) {
  const Result<Buffer*> found = FindBuffer(name);
  if (!found) return std::unexpected(found.error());
  Buffer& buffer = **found;
  const bool by_broker = client.id == 0;
  const bool first = direction == protocol::Direction::kLoad && MayLoadFirst(buffer, client);
  if (!by_broker && !first && !buffer.policy.MayAttach(client.container)) {
    return Denied(Concat("container ", Quoted(client.container), " may not attach ", Quoted(name)),
                  Concat("add it to buffers.gpushm.io/", name, ": containers"));
  }
  if (buffer.current == 0 || buffer.transferring || buffer.loading_client != 0) {
    return Fail(Code::kBusy, Concat(Quoted(name), " is being made or loaded"), "try again");
  }
  const Memory& memory = generations_.at(buffer.current).memory;
  if (memory.is_page()) {
    return Fail(Code::kInvalidArgument, Concat(Quoted(name), " is a signal, barrier or ring"),
                "buffers are loaded and saved");
  }
  if (memory.transport != protocol::Transport::kVmm) {
    return Fail(Code::kUnsupported, Concat(Quoted(name), " was offered with a cuIpc handle"),
                "load or save it in a container that sees the GPU");
  }
  if (direction != protocol::Direction::kLoad) return &memory;
  // A read-only buffer is read-only for clients; its content comes by exactly this way.
  if (!by_broker && !first && !buffer.policy.read_only) {
    if (auto may = CheckWriter(buffer, name, client); !may) return std::unexpected(may.error());
  }
  if (!by_broker && buffer.policy.read_only && buffer.state != BufferState::kLoading &&
      buffer.state != BufferState::kFailed) {
    return Denied(Concat(Quoted(name), " is read-only and has its content"),
                  "declare it access: many-writers to load it again");
  }
  buffer.transferring = true;
  buffer.one_writer_loads = false;
  buffer.state_before = std::exchange(buffer.state, BufferState::kLoading);
  buffer.failure_before = std::exchange(buffer.failure, {});
  buffer.loaded_bytes = 0;
  Show(name);
  return &memory;
}

void Ledger::TransferProgress(const std::string& name, uint64_t loaded_bytes) {
  const auto found = buffers_.find(name);
  if (found == buffers_.end() || !found->second.transferring) return;
  found->second.loaded_bytes = loaded_bytes;
  Show(name);
}

void Ledger::TransferEnded(const std::string& name, const Result<void>& result) {
  const auto found = buffers_.find(name);
  if (found == buffers_.end() || !found->second.transferring) return;
  Buffer& buffer = found->second;
  buffer.transferring = false;
  buffer.state = result ? BufferState::kReady : BufferState::kFailed;
  if (result) {
    SetContentOf(buffer.current, buffer.loaded_bytes);
  } else {
    buffer.failure = result.error().what();
  }
  Show(name);
  RemoveIfUnused(name);
}

void Ledger::TransferRefused(const std::string& name) {
  const auto found = buffers_.find(name);
  if (found == buffers_.end() || !found->second.transferring) return;
  Buffer& buffer = found->second;
  buffer.transferring = false;
  buffer.state = buffer.state_before;
  buffer.failure = std::move(buffer.failure_before);
  Show(name);
  RemoveIfUnused(name);
}

}  // namespace gpushm::broker
