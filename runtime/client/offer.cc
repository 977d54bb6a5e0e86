#include "runtime/client/offer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "contract/limits.h"
#include "platform/driver/stream_fence.h"
#include "platform/driver/stream_waits.h"
#include "runtime/client/client.h"
#include "runtime/client/ipc_mapping.h"
#include "runtime/client/names.h"

namespace gpushm::client {

using protocol::Kind;

namespace {

// What the driver reports about an address.
struct OfferedAllocation {
  CUdeviceptr base = 0;
  uint64_t size_bytes = 0;
  CUdevice device = 0;
  bool is_vmm = false;
  bool allows_descriptor = false;  // For VMM memory.
  bool allows_cuipc = false;       // For cuMemAlloc memory.
};

// An allocation in which offered memory lies.
struct OfferedBlock {
  UniqueFd descriptor;
  uint64_t mapped_bytes = 0;
};

template <typename T>
bool Ask(const CudaApi& api, CUpointer_attribute attribute, CUdeviceptr address, T* value) {
  return api.cuPointerGetAttribute(static_cast<void*>(value), attribute, address) == CUDA_SUCCESS;
}

Result<OfferedAllocation> AllocationAt(const CudaApi& api, CUdeviceptr address) {
  OfferedAllocation allocation;
  size_t size_bytes = 0;
  if (auto done = api.Check(api.cuMemGetAddressRange(&allocation.base, &size_bytes, address),
                            "cuMemGetAddressRange");
      !done) {
    return Fail(Code::kInvalidArgument,
                Concat("address 0x", std::hex, address,
                       " is not device memory of this process: ", done.error().what()),
                "pass an address from cuMemMap, cuMemAlloc or cudaMalloc, "
                "and make the context current in which it was allocated");
  }
  allocation.size_bytes = size_bytes;
  int ordinal = 0;
  if (Ask(api, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address, &ordinal)) {
    if (auto done = api.Check(api.cuDeviceGet(&allocation.device, ordinal), "cuDeviceGet"); !done) {
      return std::unexpected(done.error());
    }
  }
  if (const auto memory = DeviceMemory::Retain(api, address); memory) {
    allocation.is_vmm = true;
    CUmemAllocationProp properties{};
    if (auto done =
            api.Check(api.cuMemGetAllocationPropertiesFromHandle(&properties, memory->handle()),
                      "cuMemGetAllocationPropertiesFromHandle");
        !done) {
      return std::unexpected(done.error());
    }
    allocation.allows_descriptor =
        (properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
    allocation.device = properties.location.id;
    return allocation;
  }
  int managed = 0;  // The driver stores its booleans in four bytes.
  int capable = 0;
  Ask(api, CU_POINTER_ATTRIBUTE_IS_MANAGED, address, &managed);
  Ask(api, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address, &capable);
  allocation.allows_cuipc = capable != 0 && managed == 0;
  return allocation;
}

// The allocations in which the range lies, by address. An allocator may have mapped several side by
// side, as torch does with expandable segments.
Result<std::vector<OfferedAllocation>> LookAt(const CudaApi& api, CUdeviceptr address,
                                              uint64_t size_bytes) {
  std::vector<OfferedAllocation> found;
  for (uint64_t covered = 0; found.empty() || covered < size_bytes;) {
    const Result<OfferedAllocation> next = AllocationAt(api, address + covered);
    if (!next && found.empty()) return std::unexpected(next.error());
    if (!next || size_bytes == 0 || !(found.empty() || next->is_vmm)) {
      return Fail(Code::kInvalidArgument,
                  Concat("size_bytes: ", size_bytes, " bytes at address 0x", std::hex, address,
                         std::dec, ", but there is device memory for ", covered, " bytes"),
                  "pass the size of the range in bytes, at least 1 and not beyond its memory");
    }
    covered = next->base + next->size_bytes - address;
    found.push_back(*next);
  }
  return found;
}

Result<GpuUuid> UuidOf(const CudaApi& api, CUdevice device) {
  CUuuid raw{};
  if (auto done = api.Check(api.cuDeviceGetUuid(&raw, device), "cuDeviceGetUuid"); !done) {
    return std::unexpected(done.error());
  }
  GpuUuid uuid;
  std::memcpy(uuid.bytes.data(), raw.bytes, uuid.bytes.size());
  return uuid;
}

protocol::OfferRequest RequestFor(std::string_view name, uint64_t size_bytes,
                                  const MakeOptions& options, const GpuUuid& gpu) {
  protocol::OfferRequest request{};
  request.name = protocol::ToNameField(name);
  request.size_bytes = size_bytes;
  request.flags = (options.writers_all ? protocol::kFlagWritersAll : 0) |
                  (options.one_writer ? protocol::kFlagOneWriter : 0);
  request.on_writer_exit = options.on_writer_exit;
  request.gpu_uuid = gpu.bytes;
  return request;
}

Result<void> AwaitFence(const StreamFence& fence, const Deadline& deadline, bool dont_wait,
                        std::string_view what) {
  for (sync::Poll poll(deadline); !fence.HasPassed();) {
    if (poll.Again()) continue;
    return Fail(dont_wait ? Code::kBusy : Code::kTimeout,
                Concat(what, " has not finished, so nothing was offered"),
                "use a longer timeout, or synchronise the stream first");
  }
  return {};
}

// Waits for the work that is on the stream now. The copy follows on a stream of its own, so it does
// not wait for work that the application adds to this stream meanwhile.
Result<void> AwaitStream(const CudaApi& api, CUstream stream, const Wait& wait) {
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  if (auto done = api.Check(api.cuStreamIsCapturing(stream, &capture), "cuStreamIsCapturing");
      !done) {
    return done;
  }
  if (capture != CU_STREAM_CAPTURE_STATUS_NONE) {
    return Fail(
        Code::kUnsupported,
        Concat("stream ", static_cast<const void*>(stream), " is being captured into a graph"),
        "offer the memory after the graph has run");
  }
  const Result<StreamFence> fence = StreamFence::Record(api, stream);
  if (!fence) return std::unexpected(fence.error());
  return AwaitFence(*fence, wait.condition, wait.dont_wait, "the work on the stream");
}

Result<void> AwaitContext(const CudaApi& api) {
  return api.Check(api.cuCtxSynchronize(), "cuCtxSynchronize before the copy");
}

// Waits for all work that may still write the memory: all work of the current context, and of the
// context in which the memory was allocated. CUDA does not say which streams use which memory, so
// less would not be enough.
Result<void> AwaitContexts(const CudaApi& api, CUdeviceptr address) {
  if (StreamWaits::Instance().AnyPending()) {
    return Fail(Code::kBusy,
                "a stream of this process waits for another process, "
                "so waiting for all streams might never end",
                "set gpushm_offer_options.stream to the stream that fills the memory");
  }
  if (auto done = AwaitContext(api); !done) return done;
  CUcontext current = nullptr;
  CUcontext owner = nullptr;
  Ask(api, CU_POINTER_ATTRIBUTE_CONTEXT, address, &owner);
  if (api.cuCtxGetCurrent(&current) != CUDA_SUCCESS || owner == nullptr || owner == current) {
    return {};
  }
  if (auto done = api.Check(api.cuCtxPushCurrent(owner), "cuCtxPushCurrent"); !done) return done;
  auto done = AwaitContext(api);
  CUcontext popped = nullptr;
  api.cuCtxPopCurrent(&popped);
  return done;
}

// A descriptor of each. kUnsupported: one of them cannot be shared in this way.
Result<std::vector<OfferedBlock>> ExportAll(const CudaApi& api,
                                            std::span<const OfferedAllocation> allocations) {
  constexpr char kRemedy[] =
      "offer smaller ranges, allocate it with gpushm_create, or set allow_copy";
  if (allocations.size() > limits::kBlocks) {
    return Fail(Code::kUnsupported,
                Concat("the range lies in ", allocations.size(), " allocations; the limit is ",
                       limits::kBlocks),
                kRemedy);
  }
  std::vector<OfferedBlock> blocks;
  for (const OfferedAllocation& allocation : allocations) {
    if (allocation.device != allocations.front().device) {
      return Fail(Code::kUnsupported,
                  Concat("the range lies on GPU ", allocations.front().device, " and on GPU ",
                         allocation.device),
                  kRemedy);
    }
    if (!allocation.allows_descriptor) {
      return Fail(Code::kUnsupported,
                  Concat("the allocation at 0x", std::hex, allocation.base,
                         " was made without a handle type, so it has no descriptor"),
                  "allocate it with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, create it with "
                  "gpushm_create, or set allow_copy");
    }
    const Result<DeviceMemory> memory = DeviceMemory::Retain(api, allocation.base);
    if (!memory) return std::unexpected(memory.error());
    Result<UniqueFd> descriptor = memory->Export();
    if (!descriptor) {
      return Fail(Code::kUnsupported,
                  Concat("the driver cannot export this memory, "
                         "for example because it came from another process: ",
                         descriptor.error().what()),
                  "offer it in the process that allocated it, or set allow_copy");
    }
    blocks.push_back({std::move(*descriptor), allocation.size_bytes});
  }
  return blocks;
}

// Among the pod's GPUs; 0 if it is none of them.
Result<uint32_t> NumberOf(Client* client, const GpuUuid& gpu, const Wait& wait) {
  Session& session = client->session();
  const Result<SessionLock> lock = session.LockConnected(wait);
  if (!lock) return std::unexpected(lock.error());
  if (session.peer(*lock).gpu_uuid == gpu.bytes) return 0;
  const auto gpus = AskForGpus(&session, *lock, wait);
  if (!gpus) return std::unexpected(gpus.error());
  const auto found = std::ranges::find(*gpus, gpu.bytes, &protocol::GpuEntry::gpu_uuid);
  return found == gpus->end() ? 0 : static_cast<uint32_t>(found - gpus->begin());
}

// Returns the serial of the connection that has them. The broker forgets them with the connection,
// so the offer must go over the same one.
Result<uint64_t> StageBlocks(Session* session, const SessionLock& lock,
                             std::span<const OfferedBlock> blocks, const Wait& wait) {
  uint64_t serial = 0;
  for (uint32_t i = 0; i < blocks.size(); ++i) {
    const int raw = blocks[i].descriptor.get();
    const protocol::StageBlockRequest request{
        .mapped_bytes = blocks[i].mapped_bytes, .index = i, .reserved = 0};
    if (auto ready = session->EnsureConnected(lock, !wait.dont_wait, wait.answer); !ready) {
      return std::unexpected(ready.error());
    }
    if (i == 0) serial = session->peer(lock).serial;
    const auto staged =
        session->Ask<protocol::EmptyReply>(lock, Kind::kStageBlock, request, wait.answer,
                                           {.serial = serial, .descriptors = {&raw, 1}});
    if (!staged) return std::unexpected(staged.error());
  }
  return serial;
}

// `blocks`: none for cuIpc, one for vmm. Returns the generation.
Result<uint64_t> SendOffer(Client* client, const protocol::OfferRequest& request,
                           std::span<const OfferedBlock> blocks, const Wait& wait) {
  Session& session = client->session();
  const Result<SessionLock> lock = session.Lock(wait.answer);
  if (!lock) return std::unexpected(lock.error());
  Call call;
  int raw = -1;
  if (request.transport == Transport::kVmm) {
    raw = blocks.front().descriptor.get();
    call.descriptors = {&raw, 1};
  }
  if (request.transport == Transport::kBlocks) {
    const Result<uint64_t> serial = StageBlocks(&session, *lock, blocks, wait);
    if (!serial) return std::unexpected(serial.error());
    call.serial = *serial;
  }
  const auto reply =
      session.Ask<protocol::OfferReply>(*lock, Kind::kOffer, request, wait.answer, call);
  if (!reply) return std::unexpected(reply.error());
  client->counters().Add(protocol::Counter::kOffers);
  client->offers().Keep(reply->generation, session.peer(*lock).serial);
  return reply->generation;
}

// `gpu`: where the memory is. The copy is there, too, if it is one of the pod's.
Result<OfferOutcome> OfferCopy(Client* client, std::string_view name, CUdeviceptr address,
                               uint64_t size_bytes, const OfferOptions& options, const GpuUuid& gpu,
                               const Wait& wait) {
  const CudaApi& api = **client->driver().Api();
  CUcontext context = nullptr;
  if (api.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr) {
    return Fail(Code::kUnsupported, "a copy needs a current CUDA context",
                "make the context current in which the memory was allocated");
  }
  if (options.stream == nullptr) {
    if (auto done = AwaitContexts(api, address); !done) return std::unexpected(done.error());
  }
  const Result<uint32_t> number = NumberOf(client, gpu, wait);
  if (!number) return std::unexpected(number.error());
  MakeOptions making = options.make;
  making.unpublished = true;
  making.gpu = *number;
  const Result<Attachment*> made =
      Make(client, Kind::kCreate, name, size_bytes, making, /*attach=*/true, wait);
  if (!made) return std::unexpected(made.error());
  const Result<Stream> stream = MakeRunningStream(api);
  const auto copy = [&]() -> Result<OfferOutcome> {
    if (!stream) return std::unexpected(stream.error());
    const int64_t start_ns = MonotonicNs();
    if (auto done = api.Check(
            api.cuMemcpyDtoDAsync((*made)->facts().address, address, size_bytes, stream->get()),
            "cuMemcpyDtoDAsync");
        !done) {
      return std::unexpected(done.error());
    }
    const Result<StreamFence> fence = StreamFence::Record(api, stream->get());
    if (!fence) return std::unexpected(fence.error());
    // Without a wait, the copy has one second, as a request to the broker has.
    const Deadline& deadline = wait.dont_wait ? wait.answer : wait.condition;
    if (auto done = AwaitFence(*fence, deadline, wait.dont_wait, "the copy"); !done) {
      return std::unexpected(done.error());
    }
    const int64_t copy_ns = MonotonicNs() - start_ns;
    if (auto done = Publish(*made, wait); !done) return std::unexpected(done.error());
    const uint64_t generation = (*made)->facts().generation;
    client->offers().Keep(generation, (*made)->lease().serial);
    return OfferOutcome{.transport = Transport::kVmm,
                        .copied = true,
                        .copied_bytes = size_bytes,
                        .copy_ns = copy_ns,
                        .generation = generation,
                        .mapped_bytes = (*made)->facts().mapped_bytes};
  };
  Result<OfferOutcome> outcome = copy();
  Attachments& attachments = client->attachments();
  // If something failed, the buffer is still unpublished, and its end drops it. The memory must
  // stay until the copy has ended.
  const CUstream copies = stream ? stream->get() : nullptr;
  const bool may_copy = !outcome && stream;
  if (!may_copy || !attachments.Detach(*made, {&copies, 1}, /*defer=*/true)) {
    (void)attachments.Detach(*made, {}, /*defer=*/false);
  }
  if (outcome) client->counters().Add(protocol::Counter::kOffers);
  return outcome;
}

}  // namespace

Result<OfferOutcome> Offer(Client* client, std::string_view name, CUdeviceptr address,
                           uint64_t size_bytes, const OfferOptions& options, const Wait& wait) {
  if (auto valid = protocol::CheckName(name, "name"); !valid) {
    return std::unexpected(valid.error());
  }
  client->attachments().DoChores(wait.answer);
  const Result<const CudaApi*> loaded = client->driver().Api();
  if (!loaded) return std::unexpected(loaded.error());
  const CudaApi& api = **loaded;
  if (auto ready = api.Init(); !ready) return std::unexpected(ready.error());
  const Result<std::vector<OfferedAllocation>> allocations = LookAt(api, address, size_bytes);
  if (!allocations) return std::unexpected(allocations.error());
  const OfferedAllocation& first = allocations->front();
  const Result<GpuUuid> gpu = UuidOf(api, first.device);
  if (!gpu) return std::unexpected(gpu.error());

  if (options.stream != nullptr) {
    if (auto done = AwaitStream(api, options.stream, wait); !done) {
      return std::unexpected(done.error());
    }
  }

  Status reason(Code::kUnsupported, "this memory can be shared neither by descriptor nor by cuIpc",
                "allocate it with cuMemCreate and CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, create "
                "it with gpushm_create, or set allow_copy");
  protocol::OfferRequest request = RequestFor(name, size_bytes, options.make, *gpu);
  request.offset = address - first.base;
  for (const OfferedAllocation& allocation : *allocations)
    request.mapped_bytes += allocation.size_bytes;
  const auto as_it_is = [&](std::span<const OfferedBlock> blocks) -> Result<OfferOutcome> {
    const auto sent = SendOffer(client, request, blocks, wait);
    if (!sent) return std::unexpected(sent.error());
    return OfferOutcome{.transport = blocks.empty() ? Transport::kCuIpc : Transport::kVmm,
                        .generation = *sent,
                        .mapped_bytes = request.mapped_bytes,
                        .allocations = static_cast<uint32_t>(allocations->size())};
  };
  if (first.is_vmm) {
    const Result<std::vector<OfferedBlock>> blocks = ExportAll(api, *allocations);
    if (blocks) {
      const bool whole = blocks->size() == 1 && request.offset == 0;
      request.transport = whole ? Transport::kVmm : Transport::kBlocks;
      return as_it_is(*blocks);
    }
    reason = blocks.error();
  } else if (first.allows_cuipc) {
    CUipcMemHandle handle{};
    if (auto done = api.Check(api.cuIpcGetMemHandle(&handle, address), "cuIpcGetMemHandle"); done) {
      request.transport = Transport::kCuIpc;
      request.pid = CudaPid();
      std::memcpy(request.cuipc_handle.data(), handle.reserved, sizeof handle.reserved);
      return as_it_is({});
    } else {
      reason = Status(Code::kUnsupported, done.error().what(), "set allow_copy");
    }
  }
  if (!options.allow_copy) return std::unexpected(reason);
  return OfferCopy(client, name, address, size_bytes, options, *gpu, wait);
}

// A broker that restarted without its state knows nobody, though processes have the memory mapped.
// One that got its state back still has the generation, whose number no other one has.
Result<OfferUse> UseOfOffer(Client* client, std::string_view name, uint64_t generation,
                            const Wait& wait) {
  const std::optional<uint64_t> offered = client->offers().SerialOf(generation);
  if (!offered) {
    return Fail(Code::kNotFound,
                Concat("this client has not offered generation ", generation, " of \"", name, "\""),
                "pass the generation of gpushm_offer_result, to the client that offered it");
  }
  uint64_t serial = *offered;
  OfferUse use;
  uint64_t before = 0;  // All that `use` says must come from one broker.
  for (int attempt = 0; before != serial && attempt < limits::kReadAttempts; ++attempt) {
    before = serial;
    // In this order: nobody can attach what the name does not refer to any more.
    const auto found = Lookup(*client, name);
    if (!found && found.error().code() != Code::kNotFound) return std::unexpected(found.error());
    const auto holders = Holders(client, name, wait);
    if (!holders) return std::unexpected(holders.error());
    use = {.published = found && found->record.generation == generation};
    for (const auto& holder : *holders) use.users += holder.generation == generation ? 1 : 0;
    const Result<SessionLock> lock = client->session().Lock(wait.answer);
    if (!lock) return std::unexpected(lock.error());
    serial = client->session().peer(*lock).serial;
  }
  const bool restored = before == serial && (use.published || use.users > 0);
  if (*offered != serial && !restored) {
    return Fail(Code::kOrphaned,
                "the broker restarted without this buffer, so nobody knows who has it mapped",
                "use the memory again when the processes that attached it have ended");
  }
  client->offers().Keep(generation, serial);
  return use;
}

}  // namespace gpushm::client
