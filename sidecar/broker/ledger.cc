#include "sidecar/broker/ledger.h"

#include <algorithm>
#include <utility>

#include "contract/annotations/keys.h"
#include "contract/limits.h"
#include "contract/sync/page.h"

namespace gpushm::broker {
namespace {

std::unexpected<Status> Denied(std::string what, std::string remedy) {
  return Fail(Code::kDenied, std::move(what), std::move(remedy));
}

std::string Quoted(const std::string& name) { return Concat('"', name, '"'); }

constexpr char kListRemedy[] = "gpushmctl ls shows the names";

// Host memory comes in pages of this size.
uint64_t DescriptionPages(uint64_t bytes) { return RoundUp(bytes, uint64_t{4096}); }

}  // namespace

Ledger::Ledger(const LedgerLimits& ledger_limits, const std::vector<LedgerGpu>& gpus,
               uint64_t first_generation)
    : limits_(ledger_limits), next_generation_(first_generation) {
  GPUSHM_ASSERT(!gpus.empty());
  for (const LedgerGpu& gpu : gpus) {
    gpus_.push_back({.uuid = gpu.uuid, .total_bytes = gpu.total_bytes});
  }
}

std::string Ledger::NameOfGpu(uint32_t gpu, const char* only) const {
  return gpus_.size() == 1 ? only : Concat("GPU ", gpu);
}

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
  if (generations_.size() + limits_.buffers < limits::kLinkGenerations) return {};
  const auto under_way = std::count_if(buffers_.begin(), buffers_.end(),
                                       [](const auto& item) { return item.second.allocating; });
  if (generations_.size() + static_cast<size_t>(under_way) < limits::kLinkGenerations) return {};
  return Fail(
      Code::kExhausted,
      Concat("the pod already has ", generations_.size(), " generations of buffers, ", under_way,
             " more are being made, and the plugin keeps at most ", limits::kLinkGenerations),
      "detach old ones; see docs/reference/limits.md");
}

uint64_t Ledger::MappedBytes(uint64_t size_bytes, bool page) const {
  return RoundUp(size_bytes, page ? uint64_t{4096} : limits_.granularity);
}

Result<void> Ledger::Reserve(const Ticket& ticket) {
  if (ticket.page) return HasRoomForPage(ticket.mapped_bytes);
  const uint64_t mapped_bytes = ticket.mapped_bytes;
  const std::string& name = ticket.name;
  uint64_t& used_bytes = gpus_.at(ticket.gpu).used_bytes;
  const uint64_t free_bytes = limits_.pool_bytes - std::min(used_bytes, limits_.pool_bytes);
  if (mapped_bytes > free_bytes) {
    const std::set<uint64_t>& old = holdings_.Name(name).generations;
    const bool has_old = std::any_of(old.begin(), old.end(), [&](uint64_t number) {
      const Memory& memory = generations_.at(number).memory;
      return memory.pooled && memory.gpu == ticket.gpu;
    });
    return Fail(Code::kExhausted,
                Concat(Quoted(name), " needs ", mapped_bytes, " bytes, but the pool",
                       gpus_.size() == 1 ? "" : Concat(" on GPU ", ticket.gpu), " has ", free_bytes,
                       " of ", limits_.pool_bytes, " left"),
                !has_old ? "raise gpushm.io/pool-extra, or delete buffers that are not needed"
                         : "allow the buffer another generation (generations: 2, or room in "
                           "gpushm.io/pool-extra), or detach the old one");
  }
  used_bytes += mapped_bytes;
  return {};
}

Result<Ledger::Ticket> Ledger::BeginCreate(const Client& client, const std::string& name,
                                           uint64_t size_bytes, const Policy& policy,
                                           uint32_t flags) {
  return BeginNew(client, name, size_bytes, policy, flags, /*page=*/false);
}

Result<Ledger::Ticket> Ledger::BeginNew(const Client& client, const std::string& name,
                                        uint64_t size_bytes, const Policy& policy, uint32_t flags,
                                        bool page) {
  if (buffers_.contains(name)) {
    return Fail(Code::kAlreadyExists, Concat("a buffer ", Quoted(name), " already exists"),
                "attach to it, replace it, or use another name");
  }
  if (auto room = HasRoomForBuffer(); !room) return std::unexpected(room.error());
  const Result<Policy> allowed = PolicyOfNew(client, name, policy);
  if (!allowed) return std::unexpected(allowed.error());
  const uint32_t gpu = page ? 0 : protocol::GpuOfFlags(flags);
  if (gpu >= gpus_.size()) {
    return Fail(
        Code::kInvalidArgument,
        Concat("buffer ", Quoted(name), " is for GPU ", gpu, ", but the pod has ",
               gpus_.size() == 1 ? "one GPU, number 0"
                                 : Concat(gpus_.size(), " GPUs, numbers 0 to ", gpus_.size() - 1)),
        "use one of these, or give the pod more GPUs with gpushm.io/gpus");
  }
  if (!page && allowed->declared && gpu != allowed->gpu) {
    return Fail(Code::kInvalidArgument,
                Concat(Quoted(name), " is declared for GPU ", allowed->gpu,
                       " of the pod, not for GPU ", gpu),
                Concat("create it with gpu ", allowed->gpu, ", or use another name"));
  }
  Ticket ticket{.name = name,
                .size_bytes = size_bytes,
                .mapped_bytes = MappedBytes(size_bytes, page),
                .gpu = gpu,
                .replaces = false,
                .attach = (flags & protocol::kFlagAttach) != 0,
                .unpublished = (flags & protocol::kFlagUnpublished) != 0,
                .starts_loading = false,
                .page = page,
                .until_unused = allowed->until_unused,
                .client = client,
                .policy = *allowed,
                .buffer_id = 0};
  if (auto room = HasRoomForLease(client, ticket.attach); !room) {
    return std::unexpected(room.error());
  }
  if (auto reserved = Reserve(ticket); !reserved) {
    return std::unexpected(reserved.error());
  }
  Buffer& buffer = AddBuffer(name, *allowed);
  buffer.gpu = gpu;
  buffer.allocating = true;
  ticket.buffer_id = buffer.id;
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
      BeginCreate(Client{}, spec.name, spec.size_bytes, Policy::FromSpec(spec),
                  std::min(spec.gpu, limits::kPodGpus - 1) << protocol::kFlagGpuShift);
  if (ticket) ticket->starts_loading = spec.StartsLoading();
  return ticket;
}

Result<Ledger::Ticket> Ledger::BeginReplace(const Client& client, const std::string& name,
                                            uint64_t size_bytes, uint32_t flags) {
  return BeginNext(client, name, size_bytes, flags, /*page=*/false);
}

Result<Ledger::Ticket> Ledger::BeginNext(const Client& client, const std::string& name,
                                         uint64_t size_bytes, uint32_t flags, bool page) {
  const Result<Buffer*> found = FindBuffer(name);
  if (!found) return std::unexpected(found.error());
  Buffer& buffer = **found;
  if (auto may = CheckWriter(buffer, name, client); !may) return std::unexpected(may.error());
  if (buffer.allocating || buffer.pending != 0 || buffer.current == 0) {
    return Fail(Code::kBusy,
                Concat("another generation of ", Quoted(name), " is being made or loaded"),
                "wait until it is published (gpushm_wait), then try again");
  }
  if (IsPage(name) != page) {
    return Fail(Code::kInvalidArgument,
                Concat(Quoted(name), page ? " is a buffer" : " is a signal, barrier or ring"),
                "use another name");
  }
  const size_t live = holdings_.Name(name).generations.size();
  if (auto room = HasRoomForGeneration(); !room) return std::unexpected(room.error());
  if (live >= limits::kGenerations) {
    return Fail(Code::kExhausted,
                Concat(live, " generations of ", Quoted(name), " are still attached"),
                "detach old ones; see docs/reference/limits.md");
  }
  const uint64_t wanted =
      size_bytes != 0 ? size_bytes : generations_.at(buffer.current).memory.size_bytes;
  Ticket ticket{.name = name,
                .size_bytes = wanted,
                .mapped_bytes = MappedBytes(wanted, page),
                .gpu = buffer.gpu,
                .replaces = true,
                .attach = (flags & protocol::kFlagAttach) != 0,
                .unpublished = (flags & protocol::kFlagUnpublished) != 0,
                .starts_loading = false,
                .page = page,
                .until_unused = (flags & protocol::kFlagUntilUnused) != 0,
                .client = client,
                .policy = {},
                .buffer_id = buffer.id};
  if (ticket.attach && buffer.policy.one_writer && HasWriter(name)) {
    return Fail(Code::kBusy, Concat(Quoted(name), " already has its one writer"),
                "detach the old generation first, or declare it access: many-writers");
  }
  if (auto room = HasRoomForLease(client, ticket.attach); !room) {
    return std::unexpected(room.error());
  }
  if (auto reserved = Reserve(ticket); !reserved) {
    return std::unexpected(reserved.error());
  }
  buffer.allocating = true;
  buffer.writer_reserved = ticket.attach;
  return ticket;
}

Result<Grant> Ledger::Commit(const Ticket& ticket, Memory memory, bool client_alive,
                             int64_t now_unix_ns) {
  memory.size_bytes = ticket.size_bytes;
  memory.mapped_bytes = ticket.mapped_bytes;
  memory.gpu = ticket.gpu;
  Buffer* const buffer = FindTicket(ticket);
  // Nobody has seen this memory, and nobody will: its maker is gone, or the buffer was removed
  // while it was allocated.
  const bool unwanted = !client_alive && (ticket.unpublished || ticket.attach);
  if (buffer == nullptr || unwanted) {
    freed_.push_back(std::move(memory));
    Abort(ticket);
    if (unwanted) return Fail(Code::kPeerDied, "the requesting process ended");
    return Fail(Code::kNotFound, Concat(Quoted(ticket.name), " was removed meanwhile"),
                kListRemedy);
  }
  buffer->allocating = false;
  buffer->writer_reserved = false;
  buffer->policy.until_unused = buffer->policy.until_unused && ticket.until_unused;
  const uint64_t number = next_generation_++;
  Generation& generation = generations_[number];
  generation.buffer = ticket.name;
  generation.memory = std::move(memory);
  generation.created_unix_ns = now_unix_ns;
  AddGeneration(number);

  if (ticket.unpublished) {
    buffer->pending = number;
    generation.publisher_client = ticket.client.id;
  }
  // A successor that knows only one of the two continues with the state before.
  if (ticket.replaces) NoteGeneration(number);
  if (ticket.unpublished) {
    NoteBuffer(ticket.name);
  } else {
    if (ticket.starts_loading) buffer->state = BufferState::kLoading;
    MakeCurrent(ticket.name, *buffer, number);
  }
  if (!ticket.replaces) NoteGeneration(number);
  Grant grant{.lease_id = 0,
              .generation = number,
              .access = Access::kReadWrite,
              .memory = &generations_.at(number).memory};
  if (ticket.attach && client_alive) {
    grant.lease_id = AddLease(ticket.client, ticket.name, number, Access::kReadWrite, now_unix_ns,
                              protocol::PeerWay::kNone);
  }
  return grant;
}

void Ledger::Abort(const Ticket& ticket) {
  if (!ticket.page) gpus_.at(ticket.gpu).used_bytes -= ticket.mapped_bytes;
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
  const Result<Lease*> lease = FindLease(client, lease_id);
  if (!lease) return std::unexpected(lease.error());
  const std::string& name = (*lease)->buffer;
  const auto buffer = buffers_.find(name);
  if (buffer == buffers_.end() || buffer->second.pending != (*lease)->generation ||
      generations_.at((*lease)->generation).publisher_client != client.id) {
    return Fail(Code::kInvalidArgument,
                Concat("this attachment of ", Quoted(name), " has no unpublished generation"),
                "create or replace with `unpublished`, and publish only once");
  }
  const uint64_t number = std::exchange(buffer->second.pending, 0);
  generations_.at(number).publisher_client = 0;
  MakeCurrent(name, buffer->second, number);
  NoteGeneration(number);
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
  const GpuUuid& gpu = gpus_.at(buffer.gpu).uuid;
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
  if (auto room = HasRoomForLease(client, true); !room) return std::unexpected(room.error());
  Grant grant{.lease_id = AddLease(client, name, buffer.current, access, now_unix_ns, way),
              .generation = buffer.current,
              .access = access,
              .memory = &generations_.at(buffer.current).memory};
  if (writes && ForgetDigest(buffer.current)) Show(name);
  return grant;
}

Result<void> Ledger::Detach(const Client& client, uint64_t lease_id) {
  const Result<Lease*> lease = FindLease(client, lease_id);
  if (!lease) return std::unexpected(lease.error());
  const std::string name = (*lease)->buffer;
  const uint64_t generation = (*lease)->generation;
  const bool writes = (*lease)->access == Access::kReadWrite;
  EndLease(leases_.find(lease_id), /*died=*/false);
  // A client that detaches a generation which it has not published, or not loaded completely, gives
  // it up.
  const auto buffer = buffers_.find(name);
  if (buffer == buffers_.end()) return {};
  if (buffer->second.pending == generation &&
      generations_.at(generation).publisher_client == client.id) {
    DropPending(name, buffer->second);
  } else if (buffer->second.current == generation && writes &&
             GivesContentUp(&buffer->second, client.id,
                            {Code::kEnded,
                             "the process that loaded it detached before the load was complete"})) {
    buffer->second.state = BufferState::kFailed;
    Show(name);
  }
  RemoveIfUnused(name);
  return {};
}

Ledger::Ended Ledger::EndClient(uint64_t client_id) {
  Ended ended;
  std::set<uint64_t> written;  // Each generation once, however many leases the client has on it.
  // A copy, because the loop ends them.
  const Holdings::OfClient held = holdings_.Client(client_id);
  for (const uint64_t id : held.leases) {
    const auto lease = leases_.find(id);
    const uint64_t generation = lease->second.generation;
    const std::string name(lease->second.buffer);
    ++ended.leases;
    // Before the lease ends, so that a successor that still knows the lease detects the death
    // again.
    if (lease->second.access == Access::kReadWrite && written.insert(generation).second) {
      WriterDied(name, generation, lease->second.client, &ended);
    }
    EndLease(lease, /*died=*/true);
    if (RemoveIfUnused(name)) ended.dropped.push_back(name);
  }
  std::vector<std::string> offered;
  for (const uint64_t number : holdings_.Client(client_id).generations) {
    const Generation& generation = generations_.at(number);
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
    if (generations_.at(generation).publisher_client != client.id) return;
    DropPending(name, buffer);
    ended->dropped.push_back(name);
    return;
  }
  if (buffer.current != generation) return;
  const bool is_loader = MayLoadFirst(buffer, client) || buffer.policy.loader == client.container;
  const bool was_loading = GivesContentUp(
      &buffer, client.id,
      {Code::kPeerDied, "the process that loaded it died before the load was complete"});
  if (is_loader) {  // It begins again, unless it was done.
    if (!was_loading) return;
    buffer.state = BufferState::kLoading;
    buffer.loaded_bytes = 0;
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
      // Missing content does not become usable because a writer died.
      if (!was_loading &&
          (buffer.state == BufferState::kLoading || buffer.state == BufferState::kFailed)) {
        return;
      }
      buffer.state = was_loading ? BufferState::kFailed : BufferState::kWriterDied;
      break;
    case protocol::OnWriterExit::kKeep:
      if (!was_loading) return;
      buffer.state = BufferState::kFailed;
      break;
  }
  ended->marked.push_back(name);
  Show(name);
}

// ---- inside

bool Ledger::GivesContentUp(Buffer* buffer, uint64_t client_id, const Reason& why) {
  if (!buffer->one_writer_loads && buffer->loading_client != client_id) return false;
  if (buffer->reason.text.empty()) buffer->reason = why;
  buffer->loading_client = 0;
  buffer->one_writer_loads = false;
  return true;
}

// An unpublished generation is dropped with the lease of its publisher.
void Ledger::DropPending(const std::string& name, Buffer& buffer) {
  const uint64_t generation = std::exchange(buffer.pending, 0);
  generations_.at(generation).publisher_client = 0;
  if (buffer.current == 0) {
    Remove(name);
  } else {
    NoteBuffer(name);
  }
  ReleaseIfUnused(generation);
}

bool Ledger::RemoveIfUnused(const std::string& name) {
  const auto found = buffers_.find(name);
  if (found == buffers_.end()) return false;
  const Buffer& buffer = found->second;
  const bool in_use = buffer.allocating || buffer.pending != 0 || buffer.current == 0 ||
                      generations_.at(buffer.current).leases != 0;
  if (!buffer.policy.until_unused || in_use) return false;
  Remove(name);
  return true;
}

Result<Ledger::Buffer*> Ledger::FindBuffer(const std::string& name) {
  const auto found = buffers_.find(name);
  if (found == buffers_.end() || (found->second.current == 0 && found->second.allocating)) {
    return Fail(Code::kNotFound, Concat("no buffer ", Quoted(name)), kListRemedy);
  }
  return &found->second;
}

Ledger::Buffer& Ledger::AddBuffer(const std::string& name, const Policy& policy) {
  Buffer& buffer = buffers_[name];
  buffer.id = next_buffer_++;
  buffer.policy = policy;
  return buffer;
}

Ledger::Buffer* Ledger::FindTicket(const Ticket& ticket) {
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

void Ledger::AddGeneration(uint64_t number) {
  const Generation& generation = generations_.at(number);
  holdings_.AddGeneration(number, generation.buffer, generation.offerer_client);
  if (generation.memory.is_page()) page_bytes_ += generation.memory.mapped_bytes;
  block_count_ += generation.memory.blocks.size();
}

void Ledger::ReleaseIfUnused(uint64_t number) {
  const auto generation = generations_.find(number);
  if (generation == generations_.end() || generation->second.leases > 0) return;
  const auto buffer = buffers_.find(generation->second.buffer);
  if (buffer != buffers_.end() &&
      (buffer->second.current == number || buffer->second.pending == number)) {
    return;
  }
  holdings_.EndGeneration(number, generation->second.buffer, generation->second.offerer_client);
  const Memory& memory = generation->second.memory;
  OfGpu& gpu = gpus_.at(memory.gpu);
  if (memory.is_page()) page_bytes_ -= memory.mapped_bytes;
  if (memory.pooled) gpu.used_bytes -= memory.mapped_bytes;
  block_count_ -= memory.blocks.size();
  gpu.offered_bytes -= OfferedBytes(memory);
  description_bytes_ -= DescriptionPages(generation->second.description_bytes);
  freed_.push_back(std::move(generation->second.memory));
  const std::string name = std::move(generation->second.buffer);
  generations_.erase(generation);
  NoteReleased(number, name);
}

void Ledger::MakeCurrent(const std::string& name, Buffer& buffer, uint64_t generation) {
  const uint64_t old = std::exchange(buffer.current, generation);
  // What is known of the old content does not apply to the new.
  if (old != 0) buffer.state = BufferState::kReady;
  buffer.reason = {};
  buffer.loading_client = 0;
  buffer.one_writer_loads = false;
  buffer.loaded_bytes = 0;
  Show(name);
  if (old != 0) ReleaseIfUnused(old);
}

void Ledger::Remove(const std::string& name) {
  const auto found = buffers_.find(name);
  const uint64_t current = found->second.current;
  const uint64_t pending = found->second.pending;
  const auto gone = buffers_.extract(found);  // Kept to the end, because `name` may be its key.
  NoteBuffer(name);
  if (current != 0) {
    changes_.push_back(Change{name, std::nullopt});
    ReleaseIfUnused(current);
  }
  if (pending != 0) {
    generations_.at(pending).publisher_client = 0;  // Nobody can publish it any more.
    ReleaseIfUnused(pending);
  }
}

void Ledger::Show(const std::string& name) {
  const Buffer& buffer = buffers_.at(name);
  if (buffer.current == 0) return;
  changes_.push_back(Change{name, RecordOf(name, buffer), buffer.reason.text});
  NoteBuffer(name);
}

registry::BufferRecord Ledger::RecordOf(const std::string& name, const Buffer& buffer) const {
  const Generation& generation = generations_.at(buffer.current);
  registry::BufferRecord record;
  record.name = registry::Name(name);
  record.generation = buffer.current;
  record.size_bytes = generation.memory.size_bytes;
  record.mapped_bytes = generation.memory.mapped_bytes;
  record.gpu = gpus_.at(generation.memory.gpu).uuid.bytes;
  record.gpu_number = generation.memory.gpu;
  // Also for pages, which a flag marks, and for blocks.
  record.transport = generation.memory.transport == protocol::Transport::kCuIpc
                         ? registry::Transport::kCuIpc
                         : registry::Transport::kVmm;
  if (generation.memory.is_page()) record.flags |= registry::kRecordPage;
  if (generation.content_bytes) record.flags |= registry::kRecordContent;
  if (buffer.policy.read_only) record.flags |= registry::kRecordReadOnly;
  record.state = buffer.state;
  record.created_unix_ns = static_cast<uint64_t>(generation.created_unix_ns);
  record.loaded_bytes = LoadedBytes(buffer);
  record.creator = registry::Name(buffer.policy.creator);
  record.description_bytes = HasContent(buffer) ? generation.description_bytes : 0;
  if (!buffer.reason.text.empty()) {
    record.flags |= static_cast<uint32_t>(buffer.reason.code) << registry::kRecordReasonShift;
  }
  if (buffer.state == BufferState::kReady) record.digest = generation.digest;
  return record;
}

// Leases: how many there may be, and their start and end (Ledger's members; see ledger.h).

namespace {

// Leases that each container can have, whatever the others do; fewer if there are many containers.
constexpr uint32_t kReservedLeases = 256;

}  // namespace

// As for the server's connections: a container may also use what the others' shares do not reserve.
Result<void> Ledger::HasRoomForLease(const Client& client, bool wanted) const {
  if (!wanted) return {};
  const std::map<std::string, uint32_t>& containers = holdings_.containers();
  const uint32_t count =
      std::max({limits_.containers, static_cast<uint32_t>(containers.size()), uint32_t{1}});
  const uint32_t reserved = std::min(kReservedLeases, limits_.leases / count);
  const auto own = containers.find(client.container);
  const uint32_t has = own == containers.end() ? 0 : own->second;
  if (has < reserved && leases_.size() < limits_.leases) return {};
  uint64_t taken = uint64_t{reserved} * (count - containers.size());
  for (const auto& [container, leases] : containers) taken += std::max(leases, reserved);
  if (taken < limits_.leases) return {};
  return Fail(Code::kExhausted,
              Concat("container ", '"', client.container, '"', " has ", has,
                     " leases; the pod has ", leases_.size(), " of at most ", limits_.leases,
                     "; each container keeps a share of ", reserved),
              "detach buffers that are not used; see docs/reference/limits.md");
}

Result<Lease*> Ledger::FindLease(const Client& client, uint64_t lease_id) {
  const auto lease = leases_.find(lease_id);
  if (lease == leases_.end() || lease->second.client.id != client.id) {
    return Fail(Code::kNotFound, Concat("this client has no lease ", lease_id));
  }
  return &lease->second;
}

bool Ledger::HasWriter(const std::string& name) const {
  const auto buffer = buffers_.find(name);
  if (buffer != buffers_.end() && buffer->second.writer_reserved) return true;
  return holdings_.Name(name).writers > 0;
}

uint64_t Ledger::AddLease(const Client& client, const std::string& name, uint64_t generation,
                          Access access, int64_t now_unix_ns, protocol::PeerWay way) {
  const uint64_t id = next_lease_++;
  const auto [lease, added] =
      leases_.emplace(id, Lease{id, client, name, generation, access, now_unix_ns, way});
  holdings_.AddLease(id, client.id, client.container, name, access == Access::kReadWrite);
  ++generations_.at(generation).leases;
  NoteLease(lease->second);
  return id;
}

void Ledger::EndLease(std::map<uint64_t, Lease>::iterator lease, bool died) {
  const uint64_t generation = lease->second.generation;
  const Memory& memory = generations_.at(generation).memory;
  if (memory.is_page() && lease->second.access == Access::kReadWrite) {
    parted_.push_back({.lease_id = lease->first,
                       .died = died,
                       .page = memory.descriptor.get(),
                       .alarm = memory.alarm.get()});
  }
  // Otherwise it is dropped with its client.
  if (!died) NoteDrop(protocol::LinkDropped::kLease, lease->first);
  const Lease& ended = lease->second;
  holdings_.EndLease(ended.id, ended.client.id, ended.client.container, ended.buffer,
                     ended.access == Access::kReadWrite);
  leases_.erase(lease);
  --generations_.at(generation).leases;
  ReleaseIfUnused(generation);
}

std::vector<UniqueFd> Memory::TakeDescriptors() {
  std::vector<UniqueFd> all;
  if (descriptor) all.push_back(std::move(descriptor));
  for (Block& block : blocks) all.push_back(std::move(block.descriptor));
  blocks.clear();
  return all;
}

Result<const Block*> Ledger::FindBlock(const Client& client, uint64_t lease_id, uint32_t index) {
  const Result<Lease*> lease = FindLease(client, lease_id);
  if (!lease) return std::unexpected(lease.error());
  const Memory& memory = generations_.at((*lease)->generation).memory;
  if (index < memory.blocks.size()) return &memory.blocks[index];
  return Fail(Code::kInvalidArgument,
              Concat(Quoted((*lease)->buffer), " has ", memory.blocks.size(), " blocks, but block ",
                     index, " was requested"));
}

// Memory that applications offer (Ledger's members; see ledger.h). Whoever counts a GPU's memory
// believes the size that an application gives, so the size is limited to what the GPU has.

uint64_t Ledger::OfferedBytes(const Memory& memory) {
  if (memory.pooled || memory.is_page()) return 0;
  return protocol::OfferedBytes(memory.transport, memory.size_bytes, memory.mapped_bytes);
}

Result<void> Ledger::HasRoomForOffer(const std::string& name, const Memory& memory) const {
  const OfGpu& gpu = gpus_.at(memory.gpu);
  if (memory.mapped_bytes > gpu.total_bytes) {
    return Fail(Code::kInvalidArgument,
                Concat("size: the allocation offered as \"", name, "\" has ", memory.mapped_bytes,
                       " bytes, but its GPU has ", gpu.total_bytes),
                "give the size that cuMemGetAddressRange returns, for example 2097152");
  }
  const uint64_t wanted_bytes = OfferedBytes(memory);
  if (wanted_bytes <= gpu.total_bytes - gpu.offered_bytes) return {};
  return Fail(Code::kExhausted,
              Concat('"', name, "\" offers ", wanted_bytes,
                     " bytes, but other offers of the pod already have ", gpu.offered_bytes,
                     gpus_.size() == 1 ? "" : " on it", " and ", NameOfGpu(memory.gpu, "their GPU"),
                     " has ", gpu.total_bytes),
              "delete offers that are not used; see docs/reference/limits.md");
}

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
  if (auto room = HasRoomForOffer(name, *memory); !room) return std::unexpected(room.error());
  const uint64_t number = next_generation_++;
  Buffer& buffer = AddBuffer(name, *allowed);
  buffer.gpu = memory->gpu;
  Generation& generation = generations_[number];
  generation.buffer = name;
  generation.memory = std::move(*memory);
  generation.created_unix_ns = now_unix_ns;
  if (generation.memory.transport == protocol::Transport::kCuIpc) {
    generation.offerer_client = client.id;
  }
  gpus_.at(generation.memory.gpu).offered_bytes += OfferedBytes(generation.memory);
  AddGeneration(number);
  MakeCurrent(name, buffer, number);
  NoteGeneration(number);
  return number;
}

// Sync pages of signals, barriers and rings (Ledger's members; see ledger.h).

// Pages are made at once, so no page is ever in progress.
Result<void> Ledger::HasRoomForPage(uint64_t mapped_bytes) const {
  if (mapped_bytes <= limits::kAllPagesBytes - std::min(page_bytes_, limits::kAllPagesBytes)) {
    return {};
  }
  return Fail(Code::kExhausted,
              Concat("the pod's signals, barriers and rings use ", page_bytes_, " of ",
                     limits::kAllPagesBytes, " bytes of host memory, but ", mapped_bytes,
                     " more are needed"),
              "delete some; see docs/reference/limits.md");
}

Result<Ledger::Ticket> Ledger::BeginDeclared(const annotations::SignalSpec& spec,
                                             uint64_t page_bytes) {
  const Policy policy = Policy::FromSpec(spec);
  declared_.insert_or_assign(spec.name, policy);
  return BeginNew(Client{}, spec.name, page_bytes, policy, 0, /*page=*/true);
}

Result<Ledger::Ticket> Ledger::BeginPage(const Client& client, const std::string& name,
                                         uint64_t size_bytes, const Policy& policy,
                                         uint64_t after_generation) {
  constexpr uint32_t kFlags = protocol::kFlagAttach | protocol::kFlagUnpublished;
  if (after_generation == 0) {
    return BeginNew(client, name, size_bytes, policy, kFlags, /*page=*/true);
  }
  const auto found = buffers_.find(name);
  if (found != buffers_.end() && found->second.current != after_generation) {
    return Fail(Code::kStale,
                Concat("generation ", after_generation, " of ", '"', name, '"',
                       " is no longer current; generation ", found->second.current, " is"),
                "open it again");
  }
  return BeginNext(client, name, size_bytes,
                   kFlags | (policy.until_unused ? protocol::kFlagUntilUnused : 0), /*page=*/true);
}

bool Ledger::IsPage(const std::string& name) const {
  const auto found = buffers_.find(name);
  if (found == buffers_.end() || found->second.current == 0) return false;
  return generations_.at(found->second.current).memory.is_page();
}

std::vector<Ledger::PageLeases> Ledger::Pages() const {
  std::map<uint64_t, PageLeases> pages;
  for (const auto& [number, generation] : generations_) {
    if (!generation.memory.is_page()) continue;
    pages[number].page = generation.memory.descriptor.get();
  }
  for (const auto& [id, lease] : leases_) {
    const auto page = pages.find(lease.generation);
    if (page != pages.end()) page->second.leases.insert(id);
  }
  std::vector<PageLeases> all;
  for (auto& [number, page] : pages) all.push_back(std::move(page));
  return all;
}

Memory* Ledger::FindPage(const Client& client, uint64_t lease_id) {
  const auto lease = leases_.find(lease_id);
  if (lease == leases_.end() || lease->second.client.id != client.id) return nullptr;
  Memory& memory = generations_.at(lease->second.generation).memory;
  return memory.is_page() ? &memory : nullptr;
}

// The content of buffers: who loads, how far the load is, and what a failed load leaves (Ledger's
// members; see ledger.h).

Result<void> Ledger::SetContent(const Client& client, uint64_t lease_id, uint64_t loaded_bytes,
                                bool complete, const Digest& digest) {
  const Result<Lease*> lease = FindLease(client, lease_id);
  if (!lease) return std::unexpected(lease.error());
  if ((*lease)->access != Access::kReadWrite) {
    return Denied("only a writer can set the content's size", "attach for writing");
  }
  const uint64_t number = (*lease)->generation;
  const auto found = buffers_.find((*lease)->buffer);
  const bool unpublished = found != buffers_.end() && found->second.pending == number;
  if (found == buffers_.end() || (found->second.current != number && !unpublished)) {
    return Fail(Code::kStale, Concat(Quoted((*lease)->buffer), " has a newer generation now"));
  }
  Buffer& buffer = found->second;
  const Memory& memory = generations_.at(number).memory;
  if (memory.is_page()) {
    return Fail(Code::kInvalidArgument, Concat(Quoted(found->first), " is not a buffer"));
  }
  if (loaded_bytes > memory.size_bytes) {
    return Fail(
        Code::kInvalidArgument,
        Concat(loaded_bytes, " bytes of content do not fit into a buffer of ", memory.size_bytes));
  }
  if (unpublished) {
    // Nobody sees it, so it has no state. New content begins, which the former description does not
    // describe.
    if (!complete) PutDescription(number, UniqueFd(), 0);
    SetContentOf(number, loaded_bytes, digest);
    return {};
  }
  if (buffer.loading_client != 0 && buffer.loading_client != client.id) {
    return Fail(Code::kBusy, Concat(Quoted(found->first), " is being loaded by another process"),
                "wait until it is ready");
  }
  // New content begins, which the former description does not describe.
  const bool begins = !complete && buffer.loading_client == 0 && !buffer.one_writer_loads;
  if (begins) PutDescription(number, UniqueFd(), 0);
  buffer.state = complete ? BufferState::kReady : BufferState::kLoading;
  buffer.loading_client = complete ? 0 : client.id;
  buffer.one_writer_loads = false;
  buffer.loaded_bytes = loaded_bytes;
  buffer.reason = {};
  const bool others_write = std::ranges::any_of(leases_, [&](const auto& other) {
    return other.second.generation == number && other.second.access == Access::kReadWrite &&
           other.first != lease_id;
  });
  if (complete) {
    SetContentOf(number, loaded_bytes, others_write ? Digest() : digest);
  } else {
    ForgetDigest(number);
  }
  Show(found->first);
  return {};
}

Result<void> Ledger::StateReason(const Client& client, const std::string& name, Reason reason,
                                 bool failed) {
  const Result<Buffer*> found = FindBuffer(name);
  if (!found) return std::unexpected(found.error());
  Buffer& buffer = **found;
  if (!MayLoadFirst(buffer, client)) {
    if (auto may = CheckWriter(buffer, name, client); !may) return may;
  }
  const bool others = buffer.loading_client != 0 && buffer.loading_client != client.id;
  if (buffer.current == 0 || HasContent(buffer) || others) return {};
  // A load in progress fails when it is given up.
  const bool loads = buffer.loading_client != 0 || buffer.one_writer_loads;
  const bool fails = failed && !loads && buffer.state != BufferState::kFailed;
  if (!fails && buffer.reason == reason) return {};
  if (fails) buffer.state = BufferState::kFailed;
  buffer.reason = std::move(reason);
  Show(name);
  return {};
}

bool Ledger::HasContent(const Buffer& buffer) {
  return buffer.state == BufferState::kReady || buffer.state == BufferState::kWriterDied;
}

Result<void> Ledger::CheckContent(const std::string& name, const Buffer& buffer) {
  const std::string& reason = buffer.reason.text;
  if (buffer.current == 0 || buffer.state == BufferState::kLoading) {
    return Fail(Code::kLoading,
                Concat("the content of ", Quoted(name), " is not loaded yet",
                       reason.empty() ? "" : ": ", reason),
                "wait for it: use gpushm_wait, or a timeout in the options");
  }
  if (buffer.state == BufferState::kFailed) {
    return Fail(Code::kSystem, Concat("loading ", Quoted(name), " failed: ", reason),
                "load it again: gpushmctl load");
  }
  return {};
}

void Ledger::SetContentOf(uint64_t generation, uint64_t content_bytes, const Digest& digest) {
  generations_.at(generation).content_bytes = content_bytes;
  generations_.at(generation).digest = digest;
  NoteContent(generation);
}

bool Ledger::ForgetDigest(uint64_t number) {
  Generation& generation = generations_.at(number);
  if (generation.digest.empty()) return false;
  generation.digest = {};
  NoteContent(number);
  return true;
}

// As the registry gets it.
uint64_t Ledger::LoadedBytes(const Buffer& buffer) const {
  if (!HasContent(buffer) || buffer.current == 0) return buffer.loaded_bytes;
  return generations_.at(buffer.current).content_bytes.value_or(0);
}

bool Ledger::MayLoadFirst(const Buffer& buffer, const Client& client) const {
  return !buffer.policy.loader.empty() &&
         (limits_.one_socket || buffer.policy.loader == client.container) &&
         (buffer.state == BufferState::kLoading || buffer.state == BufferState::kFailed);
}

// Descriptions of what the bytes of a generation are (Ledger's members; see ledger.h).

Result<void> Ledger::HasRoomForDescription(const Generation& generation, uint64_t bytes) const {
  const uint64_t others = description_bytes_ - DescriptionPages(generation.description_bytes);
  if (DescriptionPages(bytes) <= limits::kAllDescriptionsBytes - others) return {};
  return Fail(Code::kExhausted,
              Concat("the other descriptions of the pod have ", others, " of ",
                     limits::kAllDescriptionsBytes, " bytes, so one of ", bytes, " does not fit"),
              "detach or delete old generations; see docs/reference/limits.md");
}

void Ledger::PutDescription(uint64_t number, UniqueFd memory, uint64_t bytes) {
  Generation& generation = generations_.at(number);
  if (!memory && !generation.description) return;
  description_bytes_ += DescriptionPages(bytes) - DescriptionPages(generation.description_bytes);
  generation.description = std::move(memory);
  generation.description_bytes = bytes;
  NoteDescription(number);
}

Result<void> Ledger::SetDescription(const Client& client, uint64_t lease_id, UniqueFd* memory,
                                    uint64_t bytes) {
  const Result<Lease*> lease = FindLease(client, lease_id);
  if (!lease) return std::unexpected(lease.error());
  const std::string& name = (*lease)->buffer;
  const uint64_t number = (*lease)->generation;
  if ((*lease)->access != Access::kReadWrite) {
    return Denied("only a writer can set the description", "attach for writing");
  }
  const auto found = buffers_.find(name);
  const bool unpublished = found != buffers_.end() && found->second.pending == number;
  if (found == buffers_.end() || (found->second.current != number && !unpublished)) {
    return Fail(Code::kStale, Concat(Quoted(name), " has a newer generation now"));
  }
  const Buffer& buffer = found->second;
  const Generation& generation = generations_.at(number);
  if (generation.memory.is_page()) {
    return Fail(Code::kInvalidArgument, Concat(Quoted(name), " is a signal, barrier or ring"),
                "only buffers have descriptions");
  }
  const bool loads = buffer.state == BufferState::kLoading && buffer.loading_client == client.id;
  if (!unpublished && !loads) {
    if (buffer.loading_client != 0) {
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
  if (auto room = HasRoomForDescription(generation, bytes); !room) return room;
  PutDescription(number, std::move(*memory), bytes);
  if (!unpublished) Show(name);
  return {};
}

Result<Ledger::Description> Ledger::FindDescription(const Client& client, const std::string& name,
                                                    uint64_t generation) const {
  const auto found = buffers_.find(name);
  if (found == buffers_.end() || (found->second.current | found->second.pending) == 0) {
    return Fail(Code::kNotFound, Concat("no buffer ", Quoted(name)), kListRemedy);
  }
  const Buffer& buffer = found->second;
  if (!buffer.policy.MayAttach(client.container)) {
    return Denied(Concat("container ", Quoted(client.container), " may not attach ", Quoted(name)),
                  Concat("add it to ", buffer.policy.Annotation(name), ": containers"));
  }
  const uint64_t wanted = generation != 0 ? generation : buffer.current;
  const auto there = generations_.find(wanted);
  const uint64_t publisher = there == generations_.end() ? 0 : there->second.publisher_client;
  if (wanted != 0 && (there == generations_.end() || there->second.buffer != name ||
                      (publisher != 0 && publisher != client.id))) {
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

// Queries that do not change the ledger (Ledger's members; see ledger.h).

Policy Policy::FromSpec(const annotations::BufferSpec& spec) {
  Policy policy;
  policy.declared = true;
  policy.containers.insert(spec.containers.begin(), spec.containers.end());
  policy.writers.insert(spec.writers.begin(), spec.writers.end());
  policy.writers_all = spec.writers.empty();
  policy.read_only = spec.access == annotations::Access::kReadOnly;
  policy.one_writer = spec.access == annotations::Access::kOneWriter;
  if (!spec.file.empty()) policy.loader = annotations::LoaderOf(spec.name);
  policy.gpu = spec.gpu;
  switch (spec.on_writer_exit) {
    case annotations::OnWriterExit::kMark:
      policy.on_writer_exit = protocol::OnWriterExit::kMark;
      break;
    case annotations::OnWriterExit::kKeep:
      policy.on_writer_exit = protocol::OnWriterExit::kKeep;
      break;
    case annotations::OnWriterExit::kDrop:
      policy.on_writer_exit = protocol::OnWriterExit::kDrop;
      break;
  }
  return policy;
}

Policy Policy::FromSpec(const annotations::SignalSpec& spec) {
  Policy policy;
  policy.declared = true;
  policy.signal = true;
  policy.containers.insert(spec.containers.begin(), spec.containers.end());
  policy.writers.insert(spec.writers.begin(), spec.writers.end());
  policy.writers_all = spec.writers.empty();
  policy.one_writer = true;
  policy.on_writer_exit = protocol::OnWriterExit::kKeep;  // Its cell shows who is gone.
  return policy;
}

std::string Policy::Annotation(const std::string& name) const {
  return Concat(signal ? annotations::kSignalsPrefix : annotations::kBuffersPrefix, name);
}

bool Policy::MayAttach(const std::string& container) const {
  return containers.empty() || containers.contains(container);
}

bool Policy::MayWrite(const std::string& container) const {
  if (read_only || !MayAttach(container)) return false;
  return writers_all || writers.contains(container) || (!declared && container == creator);
}

// ---- looking

std::vector<const Lease*> Ledger::Holders(const std::string& name, uint64_t after_lease_id,
                                          size_t at_most) const {
  std::vector<const Lease*> holders;
  if (name.empty()) {
    for (auto lease = leases_.upper_bound(after_lease_id);
         lease != leases_.end() && holders.size() < at_most; ++lease) {
      holders.push_back(&lease->second);
    }
    return holders;
  }
  const std::set<uint64_t>& leases = holdings_.Name(name).leases;
  for (auto id = leases.upper_bound(after_lease_id); id != leases.end() && holders.size() < at_most;
       ++id) {
    holders.push_back(&leases_.at(*id));
  }
  return holders;
}

std::optional<uint32_t> Ledger::GpuOf(const std::string& name) const {
  const auto found = buffers_.find(name);
  if (found == buffers_.end() || IsPage(name)) return std::nullopt;
  return found->second.gpu;
}

bool Ledger::HasLeases(uint64_t client_id) const {
  const Holdings::OfClient& held = holdings_.Client(client_id);
  return !held.leases.empty() || !held.generations.empty();
}

Ledger::Held Ledger::HeldBy(uint64_t client_id) const {
  const Holdings::OfClient& held = holdings_.Client(client_id);
  return {.leases = static_cast<uint32_t>(held.leases.size()), .lease_sum = held.lease_sum};
}

std::vector<registry::BufferRecord> Ledger::Records() const {
  std::vector<registry::BufferRecord> records;
  for (const auto& [name, buffer] : buffers_) {
    if (buffer.current != 0) records.push_back(RecordOf(name, buffer));
  }
  return records;
}

std::vector<Memory> Ledger::LetGo() {
  std::vector<Memory> all = TakeFreed();
  for (auto& [number, generation] : generations_) all.push_back(std::move(generation.memory));
  return all;
}

}  // namespace gpushm::broker
