// Mapping what the broker granted (attach.h).
#include <utility>

#include "runtime/client/attach.h"
#include "runtime/client/client.h"
#include "runtime/client/ipc_mapping.h"
#include "runtime/client/page_mapping.h"

namespace gpushm::client {
namespace {

Result<IpcMapping> OpenIpc(const CudaApi& api, const protocol::AttachReply& reply) {
  if (reply.offerer_pid != CudaPid()) return IpcMapping::Open(api, reply.cuipc_handle);
  return Fail(Code::kUnsupported,
              Concat("CUDA cannot open this buffer: "
                     "the process that offered it and this process both have PID ",
                     CudaPid(), " in their containers"),
              "offer it with allow_copy, allocate it with cuMemCreate, "
              "or start one of the two programs from a shell, so that it gets another PID");
}

// `address`: of the buffer's first byte.
Result<Attachment::Memory> Map(Driver* driver, const Grant& grant, const Deadline& deadline,
                               CUdeviceptr* address) {
  if (grant.is_page()) {
    auto page = PageMapping::Map(grant.descriptors[0], grant.record.mapped_bytes,
                                 grant.access == Access::kReadWrite);
    if (!page) return std::unexpected(page.error());
    *address = reinterpret_cast<CUdeviceptr>((*page)->address());
    return std::move(*page);
  }
  const Result<const CudaApi*> api = driver->Api();
  if (!api) return std::unexpected(api.error());
  if (grant.is_cuipc()) {
    auto mapping = OpenIpc(**api, grant.reply);
    if (!mapping) return std::unexpected(mapping.error());
    *address = mapping->base() + grant.reply.offset;
    return std::move(*mapping);
  }
  std::vector<DeviceMapping::Block> blocks;
  for (size_t i = 0; i < grant.descriptors.size(); ++i) {
    Result<DeviceMemory> memory = DeviceMemory::Import(**api, grant.descriptors[i].get());
    if (!memory) return std::unexpected(memory.error());
    blocks.push_back({std::move(*memory), grant.block_bytes.empty() ? grant.record.mapped_bytes
                                                                    : grant.block_bytes[i]});
  }
  const CUdevice home = grant.device.device;
  auto mapping = DeviceMapping::Map(**api, blocks, home, grant.access, grant.peers.mapped);
  if (mapping && grant.peers.staged) {
    mapping = StageCopy(**api, *mapping, home, *grant.peers.staged, deadline);
  }
  if (!mapping) return std::unexpected(mapping.error());
  *address = mapping->address() + grant.reply.offset;
  return std::move(*mapping);
}

void CountPeers(Counters* counters, PeerWay way) {
  if (way == PeerWay::kNvLink) counters->Add(protocol::Counter::kNvLinkAttaches);
  if (way == PeerWay::kPcie) counters->Add(protocol::Counter::kPcieAttaches);
  if (way == PeerWay::kStaged) counters->Add(protocol::Counter::kStagedAttaches);
}

}  // namespace

Result<Attachment*> Enter(Client* client, const SessionLock& lock, const Grant& grant,
                          bool unpublished, bool share, const Wait& wait) {
  Session& session = client->session();
  const registry::BufferRecord& record = grant.record;
  const protocol::AttachReply& reply = grant.reply;
  const bool is_part = grant.is_cuipc() || reply.blocks != 0;
  const size_t descriptors = grant.is_cuipc() ? 0 : reply.blocks != 0 ? reply.blocks : 1;
  if (grant.descriptors.size() != descriptors ||
      reply.offset > (is_part ? record.mapped_bytes - record.size_bytes : 0)) {
    session.Drop(lock);
    return BrokeProtocol(Concat("a grant of ", record.size_bytes, " bytes at offset ", reply.offset,
                                " of ", record.mapped_bytes, " bytes, with ",
                                grant.descriptors.size(), " descriptors instead of ", descriptors));
  }
  const Lease lease{session.peer(lock).serial, reply.lease_id};
  CUdeviceptr address = 0;
  Result<Attachment::Memory> memory = Map(&client->driver(), grant, wait.answer, &address);
  if (!memory) {
    client->attachments().EndLease(lock, lease, wait.answer);
    return std::unexpected(memory.error());
  }
  auto attachment = std::make_shared<Attachment>(
      Attachment::Facts{.client = client,
                        .name = std::string(record.name.view()),
                        .access = grant.access,
                        .generation = record.generation,
                        .size_bytes = record.size_bytes,
                        .mapped_bytes = record.mapped_bytes,
                        .transport = grant.is_page() ? Transport::kHost : record.transport,
                        .blocks = reply.blocks,
                        .device = grant.peers.staged.value_or(grant.device.device),
                        .gpu = grant.device.uuid,
                        .gpu_number = record.gpu_number,
                        .address = address,
                        .unpublished = unpublished,
                        .peer_devices = grant.peers.mapped_devices(),
                        .peer_way = grant.peers.way},
      std::move(*memory), lease, session.registry().Share());
  (void)attachment->Current();
  CountPeers(&client->counters(), grant.peers.way);
  // A staged copy belongs to the caller alone.
  return client->attachments().Keep(std::move(attachment),
                                    share && !unpublished && !grant.peers.staged);
}

}  // namespace gpushm::client
