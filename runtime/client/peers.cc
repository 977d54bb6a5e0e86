#include "runtime/client/peers.h"

#include <algorithm>
#include <array>
#include <utility>

#include "platform/driver/stream_waits.h"
#include "platform/transfer/pinned_pool.h"
#include "runtime/client/files/borrowed_context.h"

namespace gpushm::client {
namespace {

// The size of each of the two pinned buffers: enough for the full speed of PCIe, and little to pin.
constexpr uint64_t kStageBytes = uint64_t{16} << 20;

// One GPU's end of a staged copy: a stream, and the GPU's context, which is current on this thread
// only during each call.
class End {
 public:
  static Result<End> Create(const CudaApi& api, CUdevice device) {
    Result<PrimaryContext> context = PrimaryContext::Retain(api, device);
    if (!context) return std::unexpected(context.error());
    Result<BorrowedContext> current = BorrowedContext::Push(api, device);
    if (!current) return std::unexpected(current.error());
    Result<Stream> stream = MakeRunningStream(api);
    if (!stream) return std::unexpected(stream.error());
    return End(api, device, std::move(*context), std::move(*stream));
  }
  // Runs `work` on the stream, in the GPU's context.
  template <typename Work>
  Result<void> Do(const char* what, Work work) const {
    const Result<BorrowedContext> current = BorrowedContext::Push(*api_, device_);
    if (!current) return std::unexpected(current.error());
    return api_->Check(work(stream_.get()), what);
  }
  Result<void> Wait() const {
    return Do("cuStreamSynchronize",
              [&](CUstream stream) { return api_->cuStreamSynchronize(stream); });
  }

 private:
  End(const CudaApi& api, CUdevice device, PrimaryContext context, Stream stream)
      : api_(&api), device_(device), context_(std::move(context)), stream_(std::move(stream)) {}
  const CudaApi* api_;
  CUdevice device_;
  PrimaryContext context_;  // Keeps the context alive for the stream.
  Stream stream_;
};

Result<void> Pump(const CudaApi& api, const DeviceMapping& from, const DeviceMapping& to,
                  CUdevice home, CUdevice peer, const Deadline& deadline) {
  const Result<End> source = End::Create(api, home);
  if (!source) return std::unexpected(source.error());
  const Result<End> target = End::Create(api, peer);
  if (!target) return std::unexpected(target.error());
  const Result<BorrowedContext> current = BorrowedContext::Push(api, home);
  if (!current) return std::unexpected(current.error());
  const uint64_t total = from.size_bytes();
  const uint64_t chunk = std::min(total, kStageBytes);
  const Result<PooledBuffer> first = PooledBuffer::Take(api, chunk);
  if (!first) return std::unexpected(first.error());
  const Result<PooledBuffer> second = PooledBuffer::Take(api, chunk);
  if (!second) return std::unexpected(second.error());
  const std::array<std::byte*, 2> host = {first->data(), second->data()};
  // In step i, chunk i is copied from the source while chunk i - 1 is copied to the target.
  Result<void> done;
  for (uint64_t i = 0; done && (i == 0 || (i - 1) * chunk < total); ++i) {
    const uint64_t in = i * chunk;
    if (in < total) {
      done = source->Do("cuMemcpyDtoHAsync", [&](CUstream stream) {
        return api.cuMemcpyDtoHAsync(host[i % 2], from.address() + in, std::min(chunk, total - in),
                                     stream);
      });
    }
    if (done && i > 0) {
      const uint64_t out = in - chunk;
      done = target->Do("cuMemcpyHtoDAsync", [&](CUstream stream) {
        return api.cuMemcpyHtoDAsync(to.address() + out, host[(i - 1) % 2],
                                     std::min(chunk, total - out), stream);
      });
    }
    // Always waits for both: the host memory must not be freed while a GPU uses it.
    const Result<void> came = source->Wait();
    const Result<void> went = target->Wait();
    if (done) done = came ? went : came;
    if (done && in < total && deadline.Passed()) {
      done = Fail(
          Code::kTimeout,
          Concat("the deadline passed: copied ", in, " of ", total, " bytes through host memory"),
          "use a longer timeout");
    }
  }
  return done;
}

}  // namespace

uint64_t PeerPlan::mapped_devices() const {
  uint64_t bits = 0;
  for (const CUdevice device : mapped) bits |= BitOf(device);
  return bits;
}

Result<PeerPlan> PlanPeers(const CudaApi& api, std::span<const DeviceInfo> devices,
                           const DeviceInfo& home, uint64_t peer_devices, bool stage) {
  PeerPlan plan;
  const uint64_t seen = devices.size() >= 64 ? ~uint64_t{0} : (uint64_t{1} << devices.size()) - 1;
  if ((peer_devices & ~seen) != 0) {
    return Fail(
        Code::kInvalidArgument,
        Concat("peer_devices names a GPU that this process does not see. Number of visible GPUs: ",
               devices.size()),
        "set bit i for the GPU with ordinal i");
  }
  for (const DeviceInfo& device : devices) {
    if ((peer_devices & BitOf(device.device)) == 0 || device.device == home.device) continue;
    const Result<PeerAccess> access = PeerAccessOf(api, device.device, home.device);
    if (!access) return std::unexpected(access.error());
    if (*access == PeerAccess::kNone && !stage) {
      return Fail(
          Code::kUnsupported,
          Concat("GPU ", device.device, ", ", device.uuid.ToString(),
                 ", cannot access the memory of GPU ", home.device, ", ", home.uuid.ToString(),
                 ", where the buffer is: there is no NVLink, "
                 "and the driver allows no PCIe access between them"),
          "set `stage` for a copy in that GPU's own memory, or work on the buffer's GPU. "
          "nvidia-smi topo -p2p r shows which GPUs can access each other");
    }
    if (*access == PeerAccess::kNone) {
      plan.staged = device.device;
      plan.way = PeerWay::kStaged;
      continue;
    }
    plan.mapped.push_back(device.device);
    plan.way =
        std::max(plan.way, *access == PeerAccess::kNvLink ? PeerWay::kNvLink : PeerWay::kPcie);
  }
  return plan;
}

Result<DeviceMapping> StageCopy(const CudaApi& api, const DeviceMapping& from, CUdevice home,
                                CUdevice peer, const Deadline& deadline) {
  const Result<DeviceMemory> memory = DeviceMemory::Create(api, peer, from.size_bytes());
  if (!memory) return std::unexpected(memory.error());
  Result<DeviceMapping> copy =
      DeviceMapping::Map(api, *memory, from.size_bytes(), peer, Access::kReadWrite);
  if (!copy) return copy;
  if (auto done = Pump(api, from, *copy, home, peer, deadline); !done) {
    return std::unexpected(done.error());
  }
  return copy;
}

}  // namespace gpushm::client
