#include "sidecar/broker/ledger.h"

#include <algorithm>
#include <utility>

#include "contract/limits.h"
#include "sidecar/broker/journal.h"

namespace gpushm::broker {
namespace {

std::unexpected<Status> Denied(std::string what, std::string remedy) {
  return Fail(Code::kDenied, std::move(what), std::move(remedy));
}

std::string Quoted(const std::string& name) { return Concat('"', name, '"'); }

constexpr char kListRemedy[] = "gpushmctl ls shows the names";

}  // namespace

Ledger::Ledger(const LedgerLimits& ledger_limits, const std::vector<LedgerGpu>& gpus,
               uint64_t first_generation)
    : limits_(ledger_limits),
      generations_(Budget(gpus, ledger_limits.pool_bytes, ledger_limits.granularity),
                   first_generation),
      leases_(ledger_limits.leases, ledger_limits.containers) {}

// ---- making

Result<void> Ledger::HasRoomForBuffer() const {
  if (buffers_.size() >= limits_.buffers) {
    return Fail(
        Code::kExhausted,
        Concat("the pod already has ", limits_.buffers, " buffers, the most that it may have"),
        "delete one; see docs/reference/limits.md");
  }
  return HasRoomForGeneration();
}

// The plugin could not keep more. Each buffer may have one generation in progress.
Result<void> Ledger::HasRoomForGeneration() const {
  if (generations_.all().size() + limits_.buffers < limits::kLinkGenerations) return {};
  const auto under_way = std::count_if(buffers_.begin(), buffers_.end(),
                                       [](const auto& item) { return item.second.allocating; });
  if (generations_.all().size() + static_cast<size_t>(under_way) < limits::kLinkGenerations)
    return {};
  return Fail(Code::kExhausted,
              Concat("the pod already has ", generations_.all().size(), " generations of buffers, ",
                     under_way, " more are being made, and the plugin keeps at most ",
                     limits::kLinkGenerations),
              "detach old ones; see docs/reference/limits.md");
}

Result<void> Ledger::Reserve(const Ticket& ticket) {
  if (ticket.how.attach) {
    if (auto room = leases_.HasRoom(ticket.client); !room) return room;
  }
  Budget& budget = generations_.budget();
  if (ticket.how.page) return budget.HasRoomForPage(ticket.mapped_bytes);
  const bool has_old = std::ranges::any_of(generations_.OfName(ticket.name), [&](uint64_t number) {
    const Memory& memory = generations_.At(number).memory;
    return memory.pooled && memory.gpu == ticket.how.gpu;
  });
  return budget.Reserve(ticket.name, ticket.how.gpu, ticket.mapped_bytes, has_old);
}

Result<Ledger::Ticket> Ledger::BeginCreate(const Client& client, const std::string& name,
                                           uint64_t size_bytes, const Policy& policy,
                                           const Making& how) {
  if (buffers_.contains(name)) {
    return Fail(Code::kAlreadyExists, Concat("a buffer ", Quoted(name), " already exists"),
                "attach to it, replace it, or use another name");
  }
  if (auto room = HasRoomForBuffer(); !room) return std::unexpected(room.error());
  const Result<Policy> allowed = PolicyOfNew(client, name, policy);
  if (!allowed) return std::unexpected(allowed.error());
  const uint32_t gpu = how.gpu;
  const uint32_t gpus = gpu_count();
  if (gpu >= gpus) {
    return Fail(
        Code::kInvalidArgument,
        Concat("buffer ", Quoted(name), " is for GPU ", gpu, ", but the pod has ",
               gpus == 1 ? "one GPU, number 0" : Concat(gpus, " GPUs, numbers 0 to ", gpus - 1)),
        "use one of these, or give the pod more GPUs with gpushm.io/gpus");
  }
  if (!how.page && allowed->declared && gpu != allowed->gpu) {
    return Fail(Code::kInvalidArgument,
                Concat(Quoted(name), " is declared for GPU ", allowed->gpu,
                       " of the pod, not for GPU ", gpu),
                Concat("create it with gpu ", allowed->gpu, ", or use another name"));
  }
  Ticket ticket{.name = name,
                .size_bytes = size_bytes,
                .mapped_bytes = generations_.budget().MappedBytes(size_bytes, how.page),
                .how = how,
                .replaces = false,
                .starts_loading = false,
                .client = client,
                .buffer_id = next_buffer_};
  ticket.how.until_unused = allowed->until_unused;
  if (auto reserved = Reserve(ticket); !reserved) return std::unexpected(reserved.error());
  Buffer& buffer = AddBuffer(name, *allowed);
  buffer.gpu = gpu;
  buffer.allocating = true;
  return ticket;
}

// If a declared buffer was dropped (on-writer-exit: drop), its writers may create it again.
Result<Policy> Ledger::PolicyOfNew(const Client& client, const std::string& name,
                                   const Policy& asked) const {
  const auto declared = declared_.find(name);
  if (declared == declared_.end() || client.id == 0) return asked;
  if (declared->second.MayWrite(client.container)) return declared->second;
  return Denied(
      Concat(Quoted(name), " is declared by the pod, and container ", Quoted(client.container),
             " may not write it"),
      Concat("add it to ", declared->second.Annotation(name), ": writers, or use another name"));
}

Result<Ledger::Ticket> Ledger::BeginDeclared(const annotations::BufferSpec& spec) {
  declared_.insert_or_assign(spec.name, Policy::FromSpec(spec));
  Result<Ticket> ticket =
      BeginCreate(Client{}, spec.name, spec.size_bytes, Policy::FromSpec(spec), {.gpu = spec.gpu});
  if (ticket) ticket->starts_loading = spec.StartsLoading();
  return ticket;
}

Result<Ledger::Ticket> Ledger::BeginReplace(const Client& client, const std::string& name,
                                            uint64_t size_bytes, const Making& how) {
  const Result<Buffer*> found = FindBuffer(name);
  if (!found) return std::unexpected(found.error());
  Buffer& buffer = **found;
  if (auto may = CheckWriter(buffer, name, client); !may) return std::unexpected(may.error());
  if (buffer.allocating || buffer.pending != 0 || buffer.current == 0) {
    return Fail(Code::kBusy,
                Concat("another generation of ", Quoted(name), " is being made or loaded"),
                "wait until it is published (gpushm_wait), then try again");
  }
  if (IsPage(name) != how.page) {
    return Fail(Code::kInvalidArgument,
                Concat(Quoted(name), how.page ? " is a buffer" : " is a signal, barrier or ring"),
                "use another name");
  }
  const size_t live = generations_.OfName(name).size();
  if (auto room = HasRoomForGeneration(); !room) return std::unexpected(room.error());
  if (live >= limits::kGenerations) {
    return Fail(Code::kExhausted,
                Concat(live, " generations of ", Quoted(name), " are still attached"),
                "detach old ones; see docs/reference/limits.md");
  }
  const uint64_t wanted =
      size_bytes != 0 ? size_bytes : generations_.At(buffer.current).memory.size_bytes;
  if (how.attach && buffer.policy.one_writer && HasWriter(name)) {
    return Fail(Code::kBusy, Concat(Quoted(name), " already has its one writer"),
                "detach the old generation first, or declare it access: many-writers");
  }
  Ticket ticket{.name = name,
                .size_bytes = wanted,
                .mapped_bytes = generations_.budget().MappedBytes(wanted, how.page),
                .how = how,
                .replaces = true,
                .starts_loading = false,
                .client = client,
                .buffer_id = buffer.id};
  ticket.how.gpu = buffer.gpu;
  if (auto reserved = Reserve(ticket); !reserved) return std::unexpected(reserved.error());
  buffer.allocating = true;
  buffer.writer_reserved = how.attach;
  return ticket;
}

Result<Grant> Ledger::Commit(const Ticket& ticket, Memory memory, bool client_alive,
                             int64_t now_unix_ns) {
  memory.size_bytes = ticket.size_bytes;
  memory.mapped_bytes = ticket.mapped_bytes;
  memory.gpu = ticket.how.gpu;
  Buffer* const buffer = FindTicket(ticket);
  // Nobody has seen this memory, and nobody will: its maker is gone, or the buffer was removed
  // while it was allocated.
  const bool unwanted = !client_alive && (ticket.how.unpublished || ticket.how.attach);
  if (buffer == nullptr || unwanted) {
    generations_.Free(std::move(memory));
    Abort(ticket);
    if (unwanted) return Fail(Code::kPeerDied, "the requesting process ended");
    return Fail(Code::kNotFound, Concat(Quoted(ticket.name), " was removed meanwhile"),
                kListRemedy);
  }
  buffer->allocating = false;
  buffer->writer_reserved = false;
  buffer->policy.until_unused = buffer->policy.until_unused && ticket.how.until_unused;
  if (!ticket.how.page) generations_.budget().Unreserve(ticket.how.gpu, ticket.mapped_bytes);
  const uint64_t number =
      generations_.Add({.buffer = ticket.name,
                        .memory = std::move(memory),
                        .publisher_client = ticket.how.unpublished ? ticket.client.id : 0,
                        .created_unix_ns = now_unix_ns});
  if (ticket.how.unpublished) buffer->pending = number;
  // A successor that knows only one of the two continues with the state before.
  if (journal_ != nullptr && ticket.replaces) journal_->NoteGeneration(number);
  if (ticket.how.unpublished) {
    if (journal_ != nullptr) journal_->NoteBuffer(ticket.name);
  } else {
    if (ticket.starts_loading) buffer->content.Await();
    MakeCurrent(ticket.name, *buffer, number);
  }
  if (journal_ != nullptr && !ticket.replaces) journal_->NoteGeneration(number);
  Grant grant{.lease_id = 0,
              .generation = number,
              .access = Access::kReadWrite,
              .memory = &generations_.At(number).memory};
  if (ticket.how.attach && client_alive) {
    grant.lease_id = AddLease({.client = ticket.client,
                               .buffer = ticket.name,
                               .generation = number,
                               .access = Access::kReadWrite,
                               .since_unix_ns = now_unix_ns});
  }
  return grant;
}

void Ledger::Abort(const Ticket& ticket) {
  if (!ticket.how.page) generations_.budget().Unreserve(ticket.how.gpu, ticket.mapped_bytes);
  Buffer* const buffer = FindTicket(ticket);
  if (buffer == nullptr) return;
  buffer->allocating = false;
  buffer->writer_reserved = false;
  if (!ticket.replaces) {
    buffers_.erase(ticket.name);
  } else {
    RemoveIfUnused(ticket.name);
  }
}

Result<void> Ledger::Publish(const Client& client, uint64_t lease_id) {
  const Result<const Lease*> lease = leases_.Find(client, lease_id);
  if (!lease) return std::unexpected(lease.error());
  const std::string& name = (*lease)->buffer;
  const auto buffer = buffers_.find(name);
  if (buffer == buffers_.end() || buffer->second.pending != (*lease)->generation ||
      generations_.At((*lease)->generation).publisher_client != client.id) {
    return Fail(Code::kInvalidArgument,
                Concat("this attachment of ", Quoted(name), " has no unpublished generation"),
                "create or replace with `unpublished`, and publish only once");
  }
  const uint64_t number = std::exchange(buffer->second.pending, 0);
  generations_.At(number).publisher_client = 0;
  MakeCurrent(name, buffer->second, number);
  if (journal_ != nullptr) journal_->NoteGeneration(number);
  return {};
}

Result<void> Ledger::Delete(const Client& client, const std::string& name) {
  const Result<Buffer*> buffer = FindBuffer(name);
  if (!buffer) return std::unexpected(buffer.error());
  if ((*buffer)->policy.declared) {
    return Denied(Concat(Quoted(name), " is declared by the pod and lives as long as the pod"),
                  "remove it from the pod's annotations");
  }
  if (auto may = CheckWriter(**buffer, name, client); !may) return may;
  if ((*buffer)->allocating) {
    return Fail(Code::kBusy, Concat(Quoted(name), " is being made"), "try again");
  }
  Remove(name);
  return {};
}

// ---- using

Result<Grant> Ledger::Attach(const Client& client, const std::string& name, Access access,
                             uint64_t generation, const GpuUuid& sees_gpu, int64_t now_unix_ns,
                             protocol::PeerWay way) {
  const Result<Buffer*> found = FindBuffer(name);
  if (!found) return std::unexpected(found.error());
  Buffer& buffer = **found;
  const bool writes = access == Access::kReadWrite;
  const bool loads = writes && MayLoadFirst(buffer, client);
  if (!loads && !buffer.policy.MayAttach(client.container)) {
    return Denied(Concat("container ", Quoted(client.container), " may not attach ", Quoted(name)),
                  Concat("add it to ", buffer.policy.Annotation(name), ": containers"));
  }
  if (writes && !loads) {
    if (auto may = CheckWriter(buffer, name, client); !may) return std::unexpected(may.error());
  }
  const GpuUuid& gpu = generations_.budget().gpu(buffer.gpu).uuid;
  if (sees_gpu != gpu && !IsPage(name)) {
    return Denied(
        Concat("the client does not see ", gpu.ToString(), ", where ", Quoted(name), " is located"),
        "request gpushm.io/attach in this container, or check CUDA_VISIBLE_DEVICES");
  }
  if (buffer.current == 0 || !writes) {
    if (auto read = CheckContent(name, buffer); !read) return std::unexpected(read.error());
  }
  if (generation != 0 && generation != buffer.current) {
    return Fail(Code::kStale,
                Concat("generation ", generation, " of ", Quoted(name),
                       " is no longer current; generation ", buffer.current, " is"),
                "attach to the current generation");
  }
  if (writes && buffer.policy.one_writer && HasWriter(name)) {
    return Fail(Code::kBusy, Concat(Quoted(name), " already has its one writer"),
                IsPage(name)
                    ? "wait until that process ends or closes it"
                    : "wait until it detaches, or declare the buffer access: many-writers");
  }
  if (auto room = leases_.HasRoom(client); !room) return std::unexpected(room.error());
  Grant grant{.lease_id = AddLease({.client = client,
                                    .buffer = name,
                                    .generation = buffer.current,
                                    .access = access,
                                    .since_unix_ns = now_unix_ns,
                                    .peer_way = way}),
              .generation = buffer.current,
              .access = access,
              .memory = &generations_.At(buffer.current).memory};
  if (writes && ForgetDigest(buffer.current)) Show(name);
  return grant;
}

Result<void> Ledger::Detach(const Client& client, uint64_t lease_id) {
  const Result<const Lease*> lease = leases_.Find(client, lease_id);
  if (!lease) return std::unexpected(lease.error());
  const std::string name = (*lease)->buffer;
  const uint64_t generation = (*lease)->generation;
  const bool writes = (*lease)->writes();
  EndLease(lease_id, /*died=*/false);
  // A client that detaches a generation which it has not published, or not loaded completely, gives
  // it up.
  const auto buffer = buffers_.find(name);
  if (buffer == buffers_.end()) return {};
  if (buffer->second.pending == generation &&
      generations_.At(generation).publisher_client == client.id) {
    DropPending(name, buffer->second);
  } else if (buffer->second.current == generation && writes &&
             buffer->second.content.GiveUp(
                 client.id,
                 {Code::kEnded, "the process that loaded it detached before the load was complete"},
                 IsLoader(buffer->second, client))) {
    Show(name);
  }
  RemoveIfUnused(name);
  return {};
}

Ledger::Ended Ledger::EndClient(uint64_t client_id) {
  Ended ended;
  std::set<uint64_t> written;  // Each generation once, however many leases the client has on it.
  // A copy, because the loop ends them.
  const std::set<uint64_t> held = leases_.ByClient(client_id).leases;
  for (const uint64_t id : held) {
    const Lease& lease = leases_.At(id);
    const uint64_t generation = lease.generation;
    const std::string name(lease.buffer);
    ++ended.leases;
    // Before the lease ends, so that a successor that still knows the lease detects the death
    // again.
    if (lease.writes() && written.insert(generation).second) {
      WriterDied(name, generation, lease.client, &ended);
    }
    EndLease(id, /*died=*/true);
    if (RemoveIfUnused(name)) ended.dropped.push_back(name);
  }
  std::vector<std::string> offered;
  for (const uint64_t number : generations_.OfferedBy(client_id)) {
    const Generation& generation = generations_.At(number);
    const auto buffer = buffers_.find(generation.buffer);
    if (buffer != buffers_.end() && buffer->second.current == number) {
      offered.push_back(generation.buffer);
    }
  }
  for (const std::string& name : offered) {
    Remove(name);
    ended.dropped.push_back(name);
  }
  return ended;
}

void Ledger::WriterDied(const std::string& name, uint64_t generation, const Client& client,
                        Ended* ended) {
  const auto found = buffers_.find(name);
  if (found == buffers_.end()) return;
  Buffer& buffer = found->second;
  if (buffer.pending == generation) {
    if (generations_.At(generation).publisher_client != client.id) return;
    DropPending(name, buffer);
    ended->dropped.push_back(name);
    return;
  }
  if (buffer.current != generation) return;
  const bool is_loader = IsLoader(buffer, client);
  const bool was_loading = buffer.content.GiveUp(
      client.id, {Code::kPeerDied, "the process that loaded it died before the load was complete"},
      is_loader);
  if (is_loader) {  // It begins again, unless it was done.
    if (!was_loading) return;
    buffer.content.Await();
    ended->marked.push_back(name);
    Show(name);
    return;
  }
  switch (buffer.policy.on_writer_exit) {
    case protocol::OnWriterExit::kDrop:
      Remove(name);
      ended->dropped.push_back(name);
      return;
    case protocol::OnWriterExit::kMark:
      if (!was_loading && !buffer.content.LoseWriter()) return;
      break;
    case protocol::OnWriterExit::kKeep:
      if (!was_loading) return;
      break;
  }
  ended->marked.push_back(name);
  Show(name);
}

// ---- inside

bool Ledger::IsLoader(const Buffer& buffer, const Client& client) const {
  return MayLoadFirst(buffer, client) || buffer.policy.loader == client.container;
}

// An unpublished generation is dropped with the lease of its publisher.
void Ledger::DropPending(const std::string& name, Buffer& buffer) {
  const uint64_t generation = std::exchange(buffer.pending, 0);
  generations_.At(generation).publisher_client = 0;
  if (buffer.current == 0) {
    Remove(name);
  } else if (journal_ != nullptr) {
    journal_->NoteBuffer(name);
  }
  ReleaseIfUnused(generation);
}

bool Ledger::RemoveIfUnused(const std::string& name) {
  const auto found = buffers_.find(name);
  if (found == buffers_.end()) return false;
  const Buffer& buffer = found->second;
  const bool in_use = buffer.allocating || buffer.pending != 0 || buffer.current == 0 ||
                      generations_.At(buffer.current).leases != 0;
  if (!buffer.policy.until_unused || in_use) return false;
  Remove(name);
  return true;
}

Result<Buffer*> Ledger::FindBuffer(const std::string& name) {
  const auto found = buffers_.find(name);
  if (found == buffers_.end() || (found->second.current == 0 && found->second.allocating)) {
    return Fail(Code::kNotFound, Concat("no buffer ", Quoted(name)), kListRemedy);
  }
  return &found->second;
}

Buffer& Ledger::AddBuffer(const std::string& name, const Policy& policy) {
  Buffer& buffer = buffers_[name];
  buffer.id = next_buffer_++;
  buffer.policy = policy;
  return buffer;
}

Buffer* Ledger::FindTicket(const Ticket& ticket) {
  const auto found = buffers_.find(ticket.name);
  return found == buffers_.end() || found->second.id != ticket.buffer_id ? nullptr : &found->second;
}

Result<void> Ledger::CheckWriter(const Buffer& buffer, const std::string& name,
                                 const Client& client) const {
  if (buffer.policy.MayWrite(client.container)) return {};
  if (buffer.policy.read_only) {
    return Denied(Concat(Quoted(name), " is declared access: read-only"),
                  "its content comes from its file, which the pod's loader loads");
  }
  return Denied(Concat("container ", Quoted(client.container), " may not write ", Quoted(name)),
                buffer.policy.declared
                    ? Concat("add it to ", buffer.policy.Annotation(name), ": writers")
                    : Concat("its creator, container ", Quoted(buffer.policy.creator),
                             ", can create it with GPUSHM_WRITERS_ALL"));
}

void Ledger::ReleaseIfUnused(uint64_t number) {
  const auto generation = generations_.all().find(number);
  if (generation == generations_.all().end() || generation->second.leases > 0) return;
  const std::string name = generation->second.buffer;
  const auto buffer = buffers_.find(name);
  if (buffer != buffers_.end() &&
      (buffer->second.current == number || buffer->second.pending == number)) {
    return;
  }
  generations_.Free(number);
  if (journal_ != nullptr) journal_->NoteFreed(number, name);
}

void Ledger::MakeCurrent(const std::string& name, Buffer& buffer, uint64_t generation) {
  const uint64_t old = std::exchange(buffer.current, generation);
  // What is known of the old content does not apply to the new.
  if (old != 0) buffer.content.Renew();
  Show(name);
  if (old != 0) ReleaseIfUnused(old);
}

void Ledger::Remove(const std::string& name) {
  const auto found = buffers_.find(name);
  const uint64_t current = found->second.current;
  const uint64_t pending = found->second.pending;
  const auto gone = buffers_.extract(found);  // Kept to the end, because `name` may be its key.
  if (journal_ != nullptr) journal_->NoteBuffer(name);
  if (current != 0) {
    changes_.push_back(Change{name, std::nullopt});
    ReleaseIfUnused(current);
  }
  if (pending != 0) {
    generations_.At(pending).publisher_client = 0;  // Nobody can publish it any more.
    ReleaseIfUnused(pending);
  }
}

void Ledger::Show(const std::string& name) {
  const Buffer& buffer = buffers_.at(name);
  if (buffer.current == 0) return;
  changes_.push_back(Change{name, RecordOf(name, buffer), buffer.content.reason().text});
  if (journal_ != nullptr) journal_->NoteBuffer(name);
}

registry::BufferRecord Ledger::RecordOf(const std::string& name, const Buffer& buffer) const {
  const Generation& generation = generations_.At(buffer.current);
  registry::BufferRecord record;
  record.name = registry::Name(name);
  record.generation = buffer.current;
  record.size_bytes = generation.memory.size_bytes;
  record.mapped_bytes = generation.memory.mapped_bytes;
  record.gpu = generations_.budget().gpu(generation.memory.gpu).uuid.bytes;
  record.gpu_number = generation.memory.gpu;
  // Also for pages, which a flag marks, and for blocks.
  record.transport =
      generation.memory.transport == Transport::kCuIpc ? Transport::kCuIpc : Transport::kVmm;
  if (generation.memory.is_page()) record.flags |= registry::kRecordPage;
  if (generation.content_bytes) record.flags |= registry::kRecordContent;
  if (buffer.policy.read_only) record.flags |= registry::kRecordReadOnly;
  record.state = buffer.content.state();
  record.created_unix_ns = static_cast<uint64_t>(generation.created_unix_ns);
  record.loaded_bytes = LoadedBytes(buffer);
  record.creator = registry::Name(buffer.policy.creator);
  record.description_bytes = buffer.content.is_there() ? generation.description_bytes : 0;
  if (const Reason& reason = buffer.content.reason(); !reason.text.empty()) {
    record.flags |= static_cast<uint32_t>(reason.code) << registry::kRecordReasonShift;
  }
  if (record.state == BufferState::kReady) record.digest = generation.digest;
  return record;
}

bool Ledger::HasWriter(const std::string& name) const {
  const auto buffer = buffers_.find(name);
  if (buffer != buffers_.end() && buffer->second.writer_reserved) return true;
  return leases_.ByName(name).writers > 0;
}

uint64_t Ledger::AddLease(Lease lease) {
  const Lease& added = leases_.Add(std::move(lease));
  ++generations_.At(added.generation).leases;
  if (journal_ != nullptr) journal_->NoteLease(added);
  return added.id;
}

void Ledger::EndLease(uint64_t id, bool died) {
  const Lease& lease = leases_.At(id);
  const uint64_t number = lease.generation;
  Generation& generation = generations_.At(number);
  const Memory& memory = generation.memory;
  if (memory.is_page() && lease.writes()) {
    parted_.push_back({.lease_id = id,
                       .died = died,
                       .page = memory.descriptor.get(),
                       .alarm = memory.alarm.get()});
  }
  // Otherwise it is dropped with its client.
  if (journal_ != nullptr && !died) journal_->NoteLeaseEnded(id);
  leases_.End(id);
  --generation.leases;
  ReleaseIfUnused(number);
}

Result<Memory*> Ledger::MemoryOf(const Client& client, uint64_t lease_id) {
  const Result<const Lease*> lease = leases_.Find(client, lease_id);
  if (!lease) return std::unexpected(lease.error());
  return &generations_.At((*lease)->generation).memory;
}

// ---- offers

Result<uint64_t> Ledger::Offer(const Client& client, const std::string& name, const Policy& policy,
                               Memory* memory, int64_t now_unix_ns) {
  if (buffers_.contains(name)) {
    return Fail(Code::kAlreadyExists, Concat("a buffer \"", name, "\" already exists"),
                "delete it first, or use another name");
  }
  if (auto room = HasRoomForBuffer(); !room) return std::unexpected(room.error());
  const Result<Policy> allowed = PolicyOfNew(client, name, policy);
  if (!allowed) return std::unexpected(allowed.error());
  memory->pooled = false;
  if (auto room = generations_.budget().HasRoomForOffer(name, *memory); !room) {
    return std::unexpected(room.error());
  }
  Buffer& buffer = AddBuffer(name, *allowed);
  buffer.gpu = memory->gpu;
  const bool ends_with_client = memory->transport == protocol::Transport::kCuIpc;
  const uint64_t number = generations_.Add({.buffer = name,
                                            .memory = std::move(*memory),
                                            .offerer_client = ends_with_client ? client.id : 0,
                                            .created_unix_ns = now_unix_ns});
  MakeCurrent(name, buffer, number);
  if (journal_ != nullptr) journal_->NoteGeneration(number);
  return number;
}

// ---- pages of signals, barriers and rings

Result<Ledger::Ticket> Ledger::BeginDeclared(const annotations::SignalSpec& spec,
                                             uint64_t page_bytes) {
  const Policy policy = Policy::FromSpec(spec);
  declared_.insert_or_assign(spec.name, policy);
  return BeginCreate(Client{}, spec.name, page_bytes, policy, {.page = true});
}

Result<Ledger::Ticket> Ledger::BeginPage(const Client& client, const std::string& name,
                                         uint64_t size_bytes, const Policy& policy,
                                         uint64_t after_generation) {
  const Making how{
      .attach = true, .unpublished = true, .until_unused = policy.until_unused, .page = true};
  if (after_generation == 0) {
    return BeginCreate(client, name, size_bytes, policy, how);
  }
  const auto found = buffers_.find(name);
  if (found != buffers_.end() && found->second.current != after_generation) {
    return Fail(Code::kStale,
                Concat("generation ", after_generation, " of ", '"', name, '"',
                       " is no longer current; generation ", found->second.current, " is"),
                "open it again");
  }
  return BeginReplace(client, name, size_bytes, how);
}

bool Ledger::IsPage(const std::string& name) const {
  const auto found = buffers_.find(name);
  if (found == buffers_.end() || found->second.current == 0) return false;
  return generations_.At(found->second.current).memory.is_page();
}

// ---- content

Result<Ledger::Written> Ledger::FindWritten(const Client& client, uint64_t lease_id,
                                            const char* what) {
  const Result<const Lease*> lease = leases_.Find(client, lease_id);
  if (!lease) return std::unexpected(lease.error());
  if (!(*lease)->writes()) {
    return Denied(Concat("only a writer can set ", what), "attach for writing");
  }
  const uint64_t number = (*lease)->generation;
  const auto found = buffers_.find((*lease)->buffer);
  const bool unpublished = found != buffers_.end() && found->second.pending == number;
  if (found == buffers_.end() || (found->second.current != number && !unpublished)) {
    return Fail(Code::kStale, Concat(Quoted((*lease)->buffer), " has a newer generation now"));
  }
  return Written{.lease = *lease, .buffer = &found->second, .unpublished = unpublished};
}

Result<void> Ledger::SetContent(const Client& client, uint64_t lease_id, uint64_t loaded_bytes,
                                bool complete, const Digest& digest) {
  const Result<Written> written = FindWritten(client, lease_id, "the content's size");
  if (!written) return std::unexpected(written.error());
  const std::string& name = written->lease->buffer;
  const uint64_t number = written->lease->generation;
  const Memory& memory = generations_.At(number).memory;
  if (memory.is_page()) {
    return Fail(Code::kInvalidArgument, Concat(Quoted(name), " is not a buffer"));
  }
  if (loaded_bytes > memory.size_bytes) {
    return Fail(
        Code::kInvalidArgument,
        Concat(loaded_bytes, " bytes of content do not fit into a buffer of ", memory.size_bytes));
  }
  Content& content = written->buffer->content;
  if (!written->unpublished && content.IsLoadedByOther(client.id)) {
    return Fail(Code::kBusy, Concat(Quoted(name), " is being loaded by another process"),
                "wait until it is ready");
  }
  // New content begins, which the former description does not describe.
  const bool begins = !complete && (written->unpublished || !content.is_being_loaded());
  if (begins) PutDescription(number, UniqueFd(), 0);
  if (written->unpublished) {  // Nobody sees it, so it has no state.
    SetContentOf(number, loaded_bytes, digest);
    return {};
  }
  if (complete) {
    content.Complete(loaded_bytes);
    const bool others_write = std::ranges::any_of(leases_.ByName(name).leases, [&](uint64_t id) {
      const Lease& other = leases_.At(id);
      return other.generation == number && other.writes() && id != lease_id;
    });
    SetContentOf(number, loaded_bytes, others_write ? Digest() : digest);
  } else {
    content.Load(client.id, loaded_bytes);
    ForgetDigest(number);
  }
  Show(name);
  return {};
}

Result<void> Ledger::StateReason(const Client& client, const std::string& name, Reason reason) {
  const Result<Buffer*> found = FindBuffer(name);
  if (!found) return std::unexpected(found.error());
  Buffer& buffer = **found;
  if (!MayLoadFirst(buffer, client)) {
    if (auto may = CheckWriter(buffer, name, client); !may) return may;
  }
  if (buffer.current == 0) return {};
  // In the container that loads it, the process that stays speaks for its child.
  const uint64_t loader = buffer.content.loader();
  const bool is_parent = loader != 0 && IsLoader(buffer, client) &&
                         std::ranges::any_of(leases_.ByClient(loader).leases, [&](uint64_t id) {
                           return leases_.At(id).client.container == client.container;
                         });
  if (buffer.content.State(is_parent ? loader : client.id, std::move(reason))) Show(name);
  return {};
}

// What is not published is not loaded yet.
Result<void> Ledger::CheckContent(const std::string& name, const Buffer& buffer) {
  static const Content kNotYet(BufferState::kLoading, 0);
  return (buffer.current == 0 ? kNotYet : buffer.content).Check(name);
}

void Ledger::SetContentOf(uint64_t generation, uint64_t content_bytes, const Digest& digest) {
  generations_.At(generation).content_bytes = content_bytes;
  generations_.At(generation).digest = digest;
  if (journal_ != nullptr) journal_->NoteContent(generation);
}

bool Ledger::ForgetDigest(uint64_t number) {
  Generation& generation = generations_.At(number);
  if (generation.digest.empty()) return false;
  generation.digest = {};
  if (journal_ != nullptr) journal_->NoteContent(number);
  return true;
}

// As the registry gets it.
uint64_t Ledger::LoadedBytes(const Buffer& buffer) const {
  if (!buffer.content.is_there() || buffer.current == 0) return buffer.content.loaded_bytes();
  return generations_.At(buffer.current).content_bytes.value_or(0);
}

bool Ledger::MayLoadFirst(const Buffer& buffer, const Client& client) const {
  return !buffer.policy.loader.empty() &&
         (limits_.one_socket || buffer.policy.loader == client.container) &&
         !buffer.content.is_there();
}

// ---- descriptions

void Ledger::PutDescription(uint64_t number, UniqueFd memory, uint64_t bytes) {
  const bool changed = generations_.SetDescription(number, std::move(memory), bytes);
  if (changed && journal_ != nullptr) journal_->NoteDescription(number);
}

Result<void> Ledger::SetDescription(const Client& client, uint64_t lease_id, UniqueFd* memory,
                                    uint64_t bytes) {
  const Result<Written> written = FindWritten(client, lease_id, "the description");
  if (!written) return std::unexpected(written.error());
  const std::string& name = written->lease->buffer;
  const uint64_t number = written->lease->generation;
  const Generation& generation = generations_.At(number);
  if (generation.memory.is_page()) {
    return Fail(Code::kInvalidArgument, Concat(Quoted(name), " is a signal, barrier or ring"),
                "only buffers have descriptions");
  }
  const Content& content = written->buffer->content;
  if (!written->unpublished && !content.IsLoadedBy(client.id)) {
    if (content.IsLoadedByOther(client.id)) {
      return Fail(Code::kBusy, Concat(Quoted(name), " is being loaded by another process"),
                  "wait until it is ready");
    }
    if (generation.description) {
      return Fail(Code::kAlreadyExists,
                  Concat("generation ", number, " of ", Quoted(name),
                         " is published and has its description"),
                  "replace the buffer, and describe the new generation before it is published");
    }
  }
  if (auto room = generations_.budget().HasRoomForDescription(generation.description_bytes, bytes);
      !room) {
    return room;
  }
  PutDescription(number, std::move(*memory), bytes);
  if (!written->unpublished) Show(name);
  return {};
}

Result<Ledger::Description> Ledger::FindDescription(const Client& client, const std::string& name,
                                                    uint64_t generation) const {
  const auto found = buffers_.find(name);
  if (found == buffers_.end() || !found->second.has_memory()) {
    return Fail(Code::kNotFound, Concat("no buffer ", Quoted(name)), kListRemedy);
  }
  const Buffer& buffer = found->second;
  if (!buffer.policy.MayAttach(client.container)) {
    return Denied(Concat("container ", Quoted(client.container), " may not attach ", Quoted(name)),
                  Concat("add it to ", buffer.policy.Annotation(name), ": containers"));
  }
  const uint64_t wanted = generation != 0 ? generation : buffer.current;
  const auto there = generations_.all().find(wanted);
  const bool exists = there != generations_.all().end();
  const uint64_t publisher = exists ? there->second.publisher_client : 0;
  if (wanted != 0 &&
      (!exists || there->second.buffer != name || (publisher != 0 && publisher != client.id))) {
    return Fail(Code::kStale,
                Concat("generation ", wanted, " of ", Quoted(name),
                       " does not exist; the current one is ", buffer.current),
                "look the name up again");
  }
  const bool current = wanted == buffer.current;
  if (current) {  // Also if neither exists.
    if (auto read = CheckContent(name, buffer); !read) return std::unexpected(read.error());
  }
  return Description{.generation = wanted,
                     .bytes = there->second.description_bytes,
                     .descriptor = there->second.description.get()};
}

// ---- looking

std::optional<uint32_t> Ledger::GpuOf(const std::string& name) const {
  const auto found = buffers_.find(name);
  if (found == buffers_.end() || IsPage(name)) return std::nullopt;
  return found->second.gpu;
}

bool Ledger::HasLeases(uint64_t client_id) const {
  return !leases_.ByClient(client_id).leases.empty() || !generations_.OfferedBy(client_id).empty();
}

std::vector<registry::BufferRecord> Ledger::Records() const {
  std::vector<registry::BufferRecord> records;
  for (const auto& [name, buffer] : buffers_) {
    if (buffer.current != 0) records.push_back(RecordOf(name, buffer));
  }
  return records;
}

}  // namespace gpushm::broker
