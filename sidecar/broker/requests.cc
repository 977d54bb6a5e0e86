// What the broker does with each kind of request (Broker's members; see broker.h).
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "contract/claims.h"
#include "contract/limits.h"
#include "platform/base/clock.h"
#include "platform/base/sealed_memory.h"
#include "platform/daemon/descriptor.h"
#include "platform/daemon/log.h"
#include "sidecar/broker/broker.h"

namespace gpushm::broker {
namespace {

using protocol::Kind;

std::string NameOf(const protocol::NameField& field) {
  return std::string(protocol::FromNameField(field));
}

// Which of the pod's GPUs it needs is checked when it is carried out.
bool NeedsAGpu(Kind kind) {
  return kind == Kind::kAttach || kind == Kind::kCreate || kind == Kind::kReplace ||
         kind == Kind::kOffer || kind == Kind::kStageBlock || kind == Kind::kMakePage;
}

Ledger::Making MakingFor(uint32_t flags) {
  return {.attach = (flags & protocol::kFlagAttach) != 0,
          .unpublished = (flags & protocol::kFlagUnpublished) != 0,
          .until_unused = (flags & protocol::kFlagUntilUnused) != 0,
          .gpu = protocol::GpuOfFlags(flags)};
}

Policy PolicyFor(const Client& client, uint32_t flags, uint32_t on_writer_exit) {
  Policy policy;
  policy.creator = client.container;
  policy.writers_all = (flags & protocol::kFlagWritersAll) != 0;
  policy.one_writer = (flags & protocol::kFlagOneWriter) != 0;
  policy.until_unused = (flags & protocol::kFlagUntilUnused) != 0;
  policy.on_writer_exit = OnWriterExit{on_writer_exit};
  return policy;
}

}  // namespace

Result<void> Broker::CheckGpu(uint32_t gpu) const {
  if (!gpus_.at(gpu).lost) return {};
  return Fail(Code::kDeviceLost,
              Concat(gpus_.size() == 1 ? "" : Concat("GPU ", gpu, ", "),
                     gpus_.at(gpu).gpu.info().uuid.ToString(),
                     gpus_.size() == 1 ? " is lost" : ", is lost"),
              "reset the GPU or drain the node; until then the GPU is checked regularly");
}

Result<void> Broker::CheckAnyGpu() const {
  const auto healthy = std::ranges::find(gpus_, false, &PodGpu::lost);
  return healthy != gpus_.end() ? Result<void>() : CheckGpu(0);
}

Result<void> Broker::CheckGpuOf(const std::string& name) const {
  const std::optional<uint32_t> gpu = ledger_->GpuOf(name);
  return gpu ? CheckGpu(*gpu) : Result<void>();
}

std::optional<uint32_t> Broker::FindGpu(const std::array<uint8_t, 16>& uuid) const {
  for (uint32_t number = 0; number < gpus_.size(); ++number) {
    if (gpus_[number].gpu.info().uuid.bytes == uuid) return number;
  }
  return std::nullopt;
}

std::string Broker::NamesOfGpus() const {
  std::string names;
  for (uint32_t number = 0; number < gpus_.size(); ++number) {
    names += Concat(number == 0 ? "" : ", ", gpus_[number].gpu.info().uuid.ToString(),
                    gpus_.size() == 1 ? "" : Concat(" (GPU ", number, ")"));
  }
  return names;
}

Result<void> Broker::CheckOthers(const Request& request) const {
  if (!serves_others_ || others_may_write_ || request.client.container != protocol::kOtherPods) {
    return {};
  }
  const std::span<const std::byte> bytes = request.message->span();
  bool writes = false;
  switch (request.to.kind) {
    case Kind::kAttach: {
      const auto body = protocol::Parse<protocol::AttachRequest>(bytes);
      if (!body) return std::unexpected(body.error());
      writes = body->access != Access::kRead;
      break;
    }
    case Kind::kCreate:
    case Kind::kReplace:
    case Kind::kPublish:
    case Kind::kOffer:
    case Kind::kStageBlock:
    case Kind::kDelete:
    case Kind::kContent:
    case Kind::kReason:
    case Kind::kDescribe:
    case Kind::kMakePage:
      writes = true;
      break;
    default:
      break;
  }
  if (!writes) return {};
  return Fail(Code::kDenied,
              "this pod shares the buffers of another pod's claim, and may only read them",
              Concat("write from the pod that declares them, or annotate the ResourceClaim with ",
                     claims::kOthersKey, ": write"));
}

template <typename Body>
Result<void> Broker::Read(Request& request, On<Body> on) {
  const auto body = protocol::Parse<Body>(request.message->span());
  if (!body) return std::unexpected(body.error());
  return (this->*on)(request, *body);
}

Result<void> Broker::Done(const Request& request) {
  Apply();
  server_->Reply(request.to, protocol::EmptyReply{});
  return {};
}

Result<void> Broker::OnRequest(Request& request) {
  if (auto r = CheckOthers(request); !r) return r;
  if (NeedsAGpu(request.to.kind)) {
    if (auto r = CheckAnyGpu(); !r) return r;
  }
  switch (request.to.kind) {
    case Kind::kHello:
      return OnHello(request);
    case Kind::kAttach:
      return Read(request, &Broker::OnAttach);
    case Kind::kDetach:
      return Read(request, &Broker::OnDetach);
    case Kind::kCreate:
      return Read(request, &Broker::OnCreate);
    case Kind::kReplace:
      return Read(request, &Broker::OnReplace);
    case Kind::kPublish:
      return Read(request, &Broker::OnPublish);
    case Kind::kOffer:
      return Read(request, &Broker::OnOffer);
    case Kind::kStageBlock:
      return Read(request, &Broker::OnStageBlock);
    case Kind::kBlock:
      return Read(request, &Broker::OnBlock);
    case Kind::kDelete:
      return Read(request, &Broker::OnDelete);
    case Kind::kHolders:
      return Read(request, &Broker::OnHolders);
    case Kind::kBrokerInfo:
      return Read(request, &Broker::OnBrokerInfo);
    case Kind::kGpus:
      return Read(request, &Broker::OnGpus);
    case Kind::kContent:
      return Read(request, &Broker::OnContent);
    case Kind::kReason:
      return Read(request, &Broker::OnReason);
    case Kind::kDescribe:
      return Read(request, &Broker::OnDescribe);
    case Kind::kDescription:
      return Read(request, &Broker::OnDescription);
    case Kind::kCounters:
      return Read(request, &Broker::OnCounters);
    case Kind::kPod:
      return Read(request, &Broker::OnPod);
    case Kind::kMakePage:
      return Read(request, &Broker::OnMakePage);
    case Kind::kAlarm:
      return Read(request, &Broker::OnAlarm);
    case Kind::kAnnounceDescriptor:
      break;  // Handled by the server.
  }
  return Fail(Code::kCorrupt,
              Concat("a request of unknown kind ", static_cast<uint16_t>(request.to.kind)));
}

Result<void> Broker::OnHello(Request& request) {
  protocol::HelloReply reply{};
  reply.version = request.version;
  reply.simulated = gpus_.front().gpu.simulated() ? 1 : 0;
  reply.client_id = request.client.id;
  reply.epoch = epoch_;
  reply.gpu_uuid = gpus_.front().gpu.info().uuid.bytes;
  reply.container = protocol::ToNameField(request.client.container);
  reply.token = server_->Identify(request.client.id)->token;
  reply.resumed = request.resumed ? 1 : 0;
  const Leases::OfClient& held = ledger_->HeldBy(request.client.id);
  reply.leases = static_cast<uint32_t>(held.leases.size());
  reply.lease_sum = held.sum;
  server_->Reply(request.to, reply, registry_->fd());
  return {};
}

Result<void> Broker::OnAttach(Request& request, const protocol::AttachRequest& body) {
  if (draining_) {
    return Fail(Code::kUnavailable, "the sidecar is shutting down", "the pod is being stopped");
  }
  if (auto r = CheckGpuOf(NameOf(body.name)); !r) return r;
  const auto grant =
      ledger_->Attach(request.client, NameOf(body.name), Access{body.access}, body.generation,
                      GpuUuid{body.gpu_uuid}, UnixNs(), PeerWay{body.peer_way});
  if (!grant) {
    if (grant.error().code() == Code::kDenied) {
      LogWarning("attach-denied", {{"buffer", NameOf(body.name)},
                                   {"container", request.client.container},
                                   {"reason", grant.error().what()}});
    }
    return std::unexpected(grant.error());
  }
  Apply();
  ReplyAttached(request.client, request.to, *grant);
  return {};
}

void Broker::ReplyAttached(const Client& client, const ReplyTo& to, const Grant& grant) {
  const Memory& memory = *grant.memory;
  protocol::AttachReply reply{.lease_id = grant.lease_id,
                              .offerer_pid = memory.offerer_pid,
                              .blocks = static_cast<uint32_t>(memory.blocks.size()),
                              .offset = memory.offset,
                              .cuipc_handle = memory.cuipc_handle};
  if (!memory.is_page() || grant.access != Access::kRead) {
    return ReplyGrant(client, to, grant.lease_id, reply, memory.descriptor.get());
  }
  // The page's own descriptor is writable. A second descriptor of the same file, opened read-only,
  // is not.
  const std::string path = Concat("/proc/self/fd/", memory.descriptor.get());
  const UniqueFd read_only(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (read_only) return ReplyGrant(client, to, grant.lease_id, reply, read_only.get());
  const Status failed = Status(Code::kSystem, Concat("open ", path, " for reading"),
                               "check that /proc is mounted in the sidecar", errno);
  [[maybe_unused]] const auto undone = ledger_->Detach(client, grant.lease_id);
  Apply();
  server_->ReplyError(to, failed);
}

void Broker::ReplyMade(const Client& client, const ReplyTo& to, const Grant& grant) {
  const Memory& memory = *grant.memory;
  const protocol::MakeReply reply{.lease_id = grant.lease_id,
                                  .generation = grant.generation,
                                  .size_bytes = memory.size_bytes,
                                  .mapped_bytes = memory.mapped_bytes,
                                  .gpu_uuid = gpus_.at(memory.gpu).gpu.info().uuid.bytes,
                                  .gpu = memory.gpu,
                                  .reserved = 0};
  ReplyGrant(client, to, grant.lease_id, reply, grant.lease_id != 0 ? memory.descriptor.get() : -1);
}

Result<void> Broker::OnDetach(Request& request, const protocol::DetachRequest& body) {
  if (auto r = ledger_->Detach(request.client, body.lease_id); !r) return r;
  return Done(request);
}

Result<void> Broker::OnCreate(Request& request, const protocol::CreateRequest& body) {
  if (draining_) return Fail(Code::kUnavailable, "the sidecar is shutting down");
  const auto ticket = ledger_->BeginCreate(
      request.client, NameOf(body.name), body.size_bytes,
      PolicyFor(request.client, body.flags, body.on_writer_exit), MakingFor(body.flags));
  if (!ticket) return std::unexpected(ticket.error());
  return Allocate(*ticket, request.to);
}

Result<void> Broker::OnReplace(Request& request, const protocol::ReplaceRequest& body) {
  if (draining_) return Fail(Code::kUnavailable, "the sidecar is shutting down");
  const auto ticket = ledger_->BeginReplace(request.client, NameOf(body.name), body.size_bytes,
                                            MakingFor(body.flags));
  if (!ticket) return std::unexpected(ticket.error());
  return Allocate(*ticket, request.to);
}

Result<void> Broker::Allocate(const Ledger::Ticket& ticket, const ReplyTo& to) {
  if (auto r = CheckGpu(ticket.how.gpu); !r) {
    ledger_->Abort(ticket);
    Apply();
    return r;
  }
  ++driver_calls_;
  drivers_.at(ticket.how.gpu)
      ->Run([this, loop = loop_, gpu = gpus_.at(ticket.how.gpu).gpu, ticket, to] {
        auto made = std::make_shared<Result<UniqueFd>>(gpu.Allocate(ticket.mapped_bytes));
        loop->Post([this, ticket, to, made] {
          --driver_calls_;
          Allocated(ticket, to, std::move(*made));
        });
      });
  return {};
}

void Broker::Allocated(const Ledger::Ticket& ticket, const ReplyTo& to,
                       Result<UniqueFd> descriptor) {
  if (!descriptor) {
    ledger_->Abort(ticket);
    LogError("allocation-failed", {{"buffer", ticket.name},
                                   {"bytes", ticket.mapped_bytes},
                                   {"reason", descriptor.error().ToString()}});
    server_->ReplyError(to, descriptor.error());
    Apply();
    return;
  }
  Memory memory;
  memory.descriptor = std::move(*descriptor);
  const auto grant = ledger_->Commit(ticket, std::move(memory), server_->IsConnected(to), UnixNs());
  Apply();  // Peers see it before its maker does.
  if (!grant) {
    server_->ReplyError(to, grant.error());
    return;
  }
  LogInfo(ticket.replaces ? "buffer-replaced" : "buffer-created",
          {{"buffer", ticket.name},
           {"generation", grant->generation},
           {"bytes", ticket.mapped_bytes},
           {"container", ticket.client.container},
           {"published", !ticket.how.unpublished}});
  ReplyMade(ticket.client, to, *grant);
}

Result<void> Broker::OnPublish(Request& request, const protocol::PublishRequest& body) {
  if (auto r = ledger_->Publish(request.client, body.lease_id); !r) return r;
  return Done(request);
}

void Broker::DropStaged(uint64_t client_id) {
  const auto staged = staged_.extract(client_id);
  if (staged.empty()) return;
  for (Block& block : staged.mapped()) closer_.Close(std::move(block.descriptor));
}

Result<void> Broker::OnStageBlock(Request& request, const protocol::StageBlockRequest& body) {
  if (request.message->descriptors.size() != 1) {
    return Fail(Code::kCorrupt,
                Concat("block ", body.index, " of an offer came with ",
                       request.message->descriptors.size(), " descriptors; it needs 1"));
  }
  const int descriptor = request.message->descriptors[0].get();
  if (auto r = CheckMemory(descriptor, gpus_.front().gpu.memory_kind()); !r) {
    LogWarning("offer-refused",
               {{"container", request.client.container}, {"reason", r.error().what()}});
    return r;
  }
  if (body.index == 0) DropStaged(request.client.id);
  std::vector<Block>& staged = staged_[request.client.id];
  if (body.index != staged.size()) {
    return Fail(
        Code::kInvalidArgument,
        Concat("block ", body.index, " of an offer was sent after ", staged.size(), " others"),
        "offer the memory again");
  }
  size_t blocks = ledger_->block_count();
  for (const auto& [client, of_client] : staged_) blocks += of_client.size();
  if (blocks >= limits::kAllBlocks) {
    return Fail(Code::kExhausted,
                Concat("the pod's offers already consist of ", blocks,
                       " allocations; the limit is ", limits::kAllBlocks),
                "delete offers that are not used; see docs/reference/limits.md");
  }
  staged.push_back({std::move(request.message->descriptors[0]), body.mapped_bytes});
  server_->Reply(request.to, protocol::EmptyReply{});
  return {};
}

Result<void> Broker::TakeStaged(uint64_t client_id, Memory* memory) {
  auto staged = staged_.extract(client_id);
  if (!staged.empty()) memory->blocks = std::move(staged.mapped());
  uint64_t bytes = 0;
  for (const Block& block : memory->blocks) bytes += block.mapped_bytes;
  const uint64_t first = memory->blocks.empty() ? 0 : memory->blocks.front().mapped_bytes;
  const uint64_t last = memory->blocks.empty() ? 0 : memory->blocks.back().mapped_bytes;
  const uint64_t end = memory->offset + memory->size_bytes;
  if (bytes == memory->mapped_bytes && memory->offset < first && end > bytes - last) return {};
  return Fail(Code::kInvalidArgument,
              Concat(memory->size_bytes, " bytes at offset ", memory->offset, " of ",
                     memory->mapped_bytes, " do not lie in the ", memory->blocks.size(),
                     " blocks of ", bytes, " bytes that were sent before"),
              "offer the memory again");
}

Result<void> Broker::OnBlock(Request& request, const protocol::BlockRequest& body) {
  const auto memory = ledger_->MemoryOf(request.client, body.lease_id);
  if (!memory) return std::unexpected(memory.error());
  const std::vector<Block>& blocks = (*memory)->blocks;
  if (body.index >= blocks.size()) {
    return Fail(Code::kInvalidArgument,
                Concat("the memory of lease ", body.lease_id, " has ", blocks.size(),
                       " blocks, but block ", body.index, " was requested"));
  }
  const Block& block = blocks[body.index];
  server_->Reply(request.to, protocol::BlockReply{block.mapped_bytes}, block.descriptor.get());
  return {};
}

Result<void> Broker::OnOffer(Request& request, const protocol::OfferRequest& body) {
  const Transport transport{body.transport};
  const bool vmm = transport == protocol::Transport::kVmm;
  if (request.message->descriptors.size() != (vmm ? 1u : 0u)) {
    return Fail(Code::kCorrupt, Concat("an offer with transport ", body.transport, " came with ",
                                       request.message->descriptors.size(), " descriptors"));
  }
  const std::optional<uint32_t> gpu = FindGpu(body.gpu_uuid);
  if (!gpu) {
    return Fail(Code::kInvalidArgument,
                Concat("the offered memory is on ", GpuUuid{body.gpu_uuid}.ToString(),
                       ", but this broker serves ", NamesOfGpus()),
                gpus_.size() == 1 ? "offer memory of the pod's GPU, or copy it there"
                                  : "offer memory of one of the pod's GPUs, or copy it there");
  }
  if (auto r = CheckGpu(*gpu); !r) return r;
  if (vmm) {  // The plugin keeps it and relies on the broker's check of what it is.
    const int descriptor = request.message->descriptors[0].get();
    if (auto r = CheckMemory(descriptor, gpus_.front().gpu.memory_kind()); !r) {
      LogWarning("offer-refused", {{"buffer", NameOf(body.name)},
                                   {"container", request.client.container},
                                   {"reason", r.error().what()}});
      return r;
    }
  }
  Memory memory;
  memory.transport = transport;
  memory.size_bytes = body.size_bytes;
  memory.mapped_bytes = body.mapped_bytes;
  memory.cuipc_handle = body.cuipc_handle;
  memory.offset = vmm ? 0 : body.offset;
  memory.offerer_pid = body.pid;
  memory.gpu = *gpu;
  if (vmm) memory.descriptor = std::move(request.message->descriptors[0]);
  const std::string name = NameOf(body.name);
  Result<uint64_t> generation = 0;
  if (transport == protocol::Transport::kBlocks) {
    if (auto r = TakeStaged(request.client.id, &memory); !r)
      generation = std::unexpected(r.error());
  }
  if (generation) {
    generation = ledger_->Offer(request.client, name,
                                PolicyFor(request.client, body.flags, body.on_writer_exit), &memory,
                                UnixNs());
  }
  if (!generation) {
    for (UniqueFd& descriptor : memory.TakeDescriptors()) closer_.Close(std::move(descriptor));
    return std::unexpected(generation.error());
  }
  Apply();
  LogInfo("buffer-offered",
          {{"buffer", name},
           {"generation", *generation},
           {"bytes", body.size_bytes},
           {"transport", transport == protocol::Transport::kCuIpc ? "cuipc" : "vmm"},
           {"container", request.client.container}});
  server_->Reply(request.to, protocol::OfferReply{*generation});
  return {};
}

Result<void> Broker::OnDelete(Request& request, const protocol::DeleteRequest& body) {
  const std::string name = NameOf(body.name);
  if (auto r = ledger_->Delete(request.client, name); !r) return r;
  Apply();
  LogInfo("buffer-deleted", {{"buffer", name}, {"container", request.client.container}});
  server_->Reply(request.to, protocol::EmptyReply{});
  return {};
}

Result<void> Broker::OnHolders(Request& request, const protocol::HoldersRequest& body) {
  const std::vector<const Lease*> holders =
      ledger_->Holders(NameOf(body.name), body.after_lease_id, protocol::kHoldersPerReply);
  protocol::HoldersReply reply{};
  for (const Lease* lease : holders) {
    protocol::HolderEntry& entry = reply.entries[reply.count++];
    entry.buffer = protocol::ToNameField(lease->buffer);
    entry.container = protocol::ToNameField(lease->client.container);
    entry.generation = lease->generation;
    entry.client_id = lease->client.id;
    entry.lease_id = lease->id;
    entry.since_unix_ns = lease->since_unix_ns;
    entry.access = lease->access;
    entry.peer_way = lease->peer_way;
  }
  server_->Reply(request.to, reply);
  return {};
}

Result<void> Broker::OnBrokerInfo(Request& request, const protocol::BrokerInfoRequest&) {
  protocol::BrokerInfoReply reply{};
  reply.container = protocol::ToNameField(request.client.container);
  reply.gpu_uuid = gpus_.front().gpu.info().uuid.bytes;
  for (uint32_t gpu = 0; gpu < gpus_.size(); ++gpu) {
    reply.pool_bytes += ledger_->pool_bytes();
    reply.used_bytes += ledger_->used_bytes(gpu);
  }
  reply.epoch = epoch_;
  reply.clients = server_->connected();
  reply.leases = static_cast<uint32_t>(ledger_->lease_count());
  reply.simulated = gpus_.front().gpu.simulated() ? 1 : 0;
  reply.version = request.version;
  server_->Reply(request.to, reply);
  return {};
}

Result<void> Broker::OnGpus(Request& request, const protocol::GpusRequest&) {
  protocol::GpusReply reply{};
  for (const PodGpu& gpu : gpus_) {
    reply.entries[reply.count] = {.gpu_uuid = gpu.gpu.info().uuid.bytes,
                                  .pool_bytes = ledger_->pool_bytes(),
                                  .used_bytes = ledger_->used_bytes(reply.count),
                                  .lost = gpu.lost ? 1U : 0U,
                                  .reserved = 0};
    ++reply.count;
  }
  server_->Reply(request.to, reply);
  return {};
}

Result<void> Broker::OnContent(Request& request, const protocol::ContentRequest& body) {
  if (auto r = ledger_->SetContent(request.client, body.lease_id, body.loaded_bytes,
                                   body.complete == 1, body.digest);
      !r) {
    return r;
  }
  return Done(request);
}

Result<void> Broker::OnReason(Request& request, const protocol::ReasonRequest& body) {
  Reason reason{.code = static_cast<Code>(body.code),
                .text = std::string(protocol::FromLineField(body.text)),
                .passes = body.failed == 0};
  if (auto r = ledger_->StateReason(request.client, NameOf(body.name), std::move(reason)); !r) {
    return r;
  }
  return Done(request);
}

Result<void> Broker::OnDescribe(Request& request, const protocol::DescribeRequest& body) {
  if (request.message->descriptors.size() != 1) {
    return Fail(Code::kCorrupt,
                Concat("a description came with ", request.message->descriptors.size(),
                       " descriptors; it needs 1"));
  }
  UniqueFd& memory = request.message->descriptors[0];
  const auto sealed =
      CheckSealed(memory.get(), "description", body.size_bytes, body.size_bytes, Writers::kNobody);
  if (!sealed) return std::unexpected(sealed.error());
  if (auto r = ledger_->SetDescription(request.client, body.lease_id, &memory, body.size_bytes);
      !r) {
    return r;
  }
  return Done(request);
}

Result<void> Broker::OnDescription(Request& request, const protocol::DescriptionRequest& body) {
  const auto found = ledger_->FindDescription(request.client, NameOf(body.name), body.generation);
  if (!found) return std::unexpected(found.error());
  server_->Reply(
      request.to,
      protocol::DescriptionReply{.generation = found->generation, .size_bytes = found->bytes},
      found->descriptor);
  return {};
}

Result<void> Broker::OnCounters(Request& request, const protocol::CountersRequest&) {
  const Result<int> page = counters_->PageOf(request.client);
  if (!page) return std::unexpected(page.error());
  PublishCountersSoon();
  server_->Reply(request.to,
                 protocol::CountersReply{.version = protocol::kCountersVersion,
                                         .size_bytes = sizeof(protocol::CounterPage)},
                 *page);
  return {};
}

Result<void> Broker::OnPod(Request& request, const protocol::PodRequest& body) {
  const uint64_t id = request.client.id;
  // A client that resumed may be stated already, without the name.
  if (server_->SetPod(id, body) && link_ && announced_.erase(id) == 1) Announce(id);
  server_->Reply(request.to, protocol::EmptyReply{});
  return {};
}

}  // namespace gpushm::broker
