// A buffer of GPU 0 that GPU 1 uses. It compares the attach with the driver's calls by hand, and a
// kernel that reads it in place with the copy engine. It also measures the copy through host memory
// that an attach makes if the GPUs cannot access each other. It needs two GPUs that can.
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "runtime/client/peers.h"
#include "tests/bench/harness.h"
#include "tests/bench/raw.h"

namespace gpushm::bench {
namespace {

constexpr CUdevice kHome = 0;
constexpr CUdevice kPeer = 1;
constexpr double kAttachBudgetRatio = 1.5;
constexpr double kReadBudgetRatio = 1 / 0.9;
constexpr std::array<uint64_t, 2> kSizes = {64 * kMiB, kGiB};
constexpr int kCopies = 20;
constexpr unsigned kBlocks = 132 * 4;
constexpr unsigned kThreads = 512;

// Reads 16 bytes `count` times, with as many threads as run at once, and uses the sum.
constexpr char kProgram[] = R"ptx(
.version 7.0
.target sm_70
.address_size 64
.visible .entry read_all(.param .u64 from, .param .u64 count, .param .u64 never) {
  .reg .pred %p<3>;
  .reg .b32 %r<12>;
  .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [from];
  ld.param.u64 %rd2, [count];
  ld.param.u64 %rd3, [never];
  cvta.to.global.u64 %rd1, %rd1;
  cvta.to.global.u64 %rd3, %rd3;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %nctaid.x;
  mad.lo.u32 %r5, %r1, %r2, %r3;
  mul.lo.u32 %r6, %r4, %r2;
  cvt.u64.u32 %rd4, %r5;
  cvt.u64.u32 %rd5, %r6;
  mov.u32 %r11, 0;
more:
  setp.ge.u64 %p1, %rd4, %rd2;
  @%p1 bra done;
  shl.b64 %rd6, %rd4, 4;
  add.u64 %rd6, %rd1, %rd6;
  ld.global.v4.u32 {%r7, %r8, %r9, %r10}, [%rd6];
  add.u32 %r7, %r7, %r8;
  add.u32 %r9, %r9, %r10;
  add.u32 %r7, %r7, %r9;
  add.u32 %r11, %r11, %r7;
  add.u64 %rd4, %rd4, %rd5;
  bra more;
done:
  setp.eq.u32 %p2, %r11, 1;
  @%p2 st.global.u32 [%rd3], %r11;
  ret;
}
)ptx";

// One broker with a buffer of each size on GPU 0, and this process with a context on both GPUs.
struct Setup {
  Broker broker;
  Connection connection;
  PrimaryContext home;
  PrimaryContext peer;
};
Setup* TheSetup() {
  static std::optional<Setup> setup;
  if (setup) return &*setup;
  const CudaApi& api = *ThisMachine().api;
  PrimaryContext home = Must(PrimaryContext::Retain(api, kHome));
  PrimaryContext peer = Must(PrimaryContext::Retain(api, kPeer));
  Broker::Options options;
  for (const uint64_t size : kSizes) options.buffers.emplace_back(SizeName(size), size);
  for (auto& [name, size] : options.buffers) name = Concat("b", size / kMiB);
  Broker broker = Broker::Start(options);
  Connection connection = Connection::To(broker);
  setup.emplace(std::move(broker), std::move(connection), std::move(home), std::move(peer));
  return &*setup;
}

std::string NameFor(uint64_t size) { return Concat("b", size / kMiB); }

gpushm_attachment* AttachOnPeer(gpushm_client* client, uint64_t size) {
  gpushm_attach_options options;
  GPUSHM_INIT(&options);
  options.peer_devices = uint64_t{1} << kPeer;
  gpushm_attachment* attachment = nullptr;
  Check(gpushm_attach(client, NameFor(size).c_str(), &options, &attachment), "attach");
  return attachment;
}

int64_t TimeOurs(gpushm_client* client, uint64_t size) {
  const int64_t start_ns = MonotonicNs();
  gpushm_attachment* const attachment = AttachOnPeer(client, size);
  const int64_t took_ns = MonotonicNs() - start_ns;
  gpushm_attachment_detach(attachment, nullptr);
  return took_ns;
}

int64_t TimeRaw(RawServer& server, uint64_t size) {
  const CudaApi& api = *ThisMachine().api;
  const std::array<CUdevice, 1> peers = {kPeer};
  const int64_t start_ns = MonotonicNs();
  const UniqueFd descriptor = server.Fetch();
  const auto memory = Must(DeviceMemory::Import(api, descriptor.get()));
  const auto mapping = Must(DeviceMapping::Map(api, memory, size, kHome, Access::kRead, peers));
  return MonotonicNs() - start_ns;
}

// In turns. The first attach of a process across two GPUs, which sets up their connection, is not
// included: PeerAttach/first shows it.
void PeerAttach(benchmark::State& state, uint64_t size) {
  const Setup* setup = TheSetup();
  const auto descriptor = BorrowedDescriptor::Borrow(setup->broker.folder(), NameFor(size));
  RawServer server = RawServer::Start(descriptor.get());
  InTurns(
      state, [&] { return TimeOurs(setup->connection.get(), size); },
      [&] { return TimeRaw(server, size); });
  state.counters["budget_ratio"] = kAttachBudgetRatio;
}

void FirstPeerAttach(benchmark::State& state) {
  const Setup* setup = TheSetup();
  Repeat(state, [&] { return TimeOurs(setup->connection.get(), 64 * kMiB); });
  state.SetLabel("the process's first: sets the way between the GPUs up");
}

// The kernel and its module on GPU 1.
class Reader {
 public:
  static Reader Load(const CudaApi& api) {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    Must(api.Check(api.cuModuleLoadData(&module, kProgram), "cuModuleLoadData"));
    Must(api.Check(api.cuModuleGetFunction(&function, module, "read_all"), "read_all"));
    return Reader(function);
  }
  void Read(const CudaApi& api, CUdeviceptr from, uint64_t bytes, CUdeviceptr never) const {
    uint64_t count = bytes / 16;
    void* arguments[] = {&from, &count, &never};
    Must(api.Check(api.cuLaunchKernel(function_, kBlocks, 1, 1, kThreads, 1, 1, 0, nullptr,
                                      arguments, nullptr),
                   "cuLaunchKernel"));
    Must(api.Check(api.cuCtxSynchronize(), "cuCtxSynchronize"));
  }

 private:
  explicit Reader(CUfunction function) : function_(function) {}
  CUfunction function_;
};

// On GPU 1, in turns: a kernel that reads the gigabyte in place, and the copy engine that copies it
// to GPU 1's own memory.
void PeerRead(benchmark::State& state) {
  const CudaApi& api = *ThisMachine().api;
  const Setup* setup = TheSetup();
  Must(setup->peer.MakeCurrent());
  const auto attachment = AttachOnPeer(setup->connection.get(), kGiB);
  const CUdeviceptr there = gpushm_attachment_address(attachment);
  const auto memory = Must(DeviceMemory::Create(api, kPeer, kGiB));
  const auto here = Must(DeviceMapping::Map(api, memory, kGiB, kPeer, Access::kReadWrite));
  const Reader reader = Reader::Load(api);
  const auto time = [&](const auto& work) {
    const int64_t start_ns = MonotonicNs();
    work();
    Must(api.Check(api.cuCtxSynchronize(), "cuCtxSynchronize"));
    return MonotonicNs() - start_ns;
  };
  InTurns(
      state, [&] { return time([&] { reader.Read(api, there, kGiB, here.address()); }); },
      [&] {
        return time([&] {
          Must(api.Check(api.cuMemcpyDtoDAsync(here.address(), there, kGiB, nullptr), "copy"));
        });
      });
  gpushm_attachment_detach(attachment, nullptr);
  state.counters["budget_ratio"] = kReadBudgetRatio;
  state.counters["bytes"] = static_cast<double>(kGiB);
  state.SetLabel("baseline: the copy engine");
}

// What an attach does if the GPUs cannot access each other, also measured if they can.
void StagedCopy(benchmark::State& state) {
  const CudaApi& api = *ThisMachine().api;
  const Setup* setup = TheSetup();
  const auto memory = Must(DeviceMemory::Create(api, kHome, kGiB));
  const auto from = Must(DeviceMapping::Map(api, memory, kGiB, kHome, Access::kReadWrite));
  Must(setup->home.MakeCurrent());
  constexpr uint32_t kWord = 4711;
  Must(api.Check(api.cuMemsetD32(from.address(), kWord, kGiB / 4), "cuMemsetD32"));
  Samples samples;
  for (auto _ : state) {
    const int64_t start_ns = MonotonicNs();
    const auto copy = Must(client::StageCopy(api, from, kHome, kPeer, Deadline::AfterMs(kStepMs)));
    const auto took_ns = static_cast<double>(MonotonicNs() - start_ns);
    samples.Add(took_ns);
    state.SetIterationTime(took_ns / 1e9);
    Must(setup->peer.MakeCurrent());
    uint32_t last = 0;
    Must(api.Check(api.cuMemcpyDtoH(&last, copy.address() + kGiB - 4, 4), "cuMemcpyDtoH"));
    if (last != kWord) throw Failure(Code::kCorrupt, "the copy differs from its source");
    Must(setup->home.MakeCurrent());
  }
  Show(state, Ours{samples});
  state.counters["bytes"] = static_cast<double>(kGiB);
}

// Whether GPU 1 exists and can access GPU 0's memory.
bool HasPeers() {
  int can = 0;
  return ThisMachine().api->cuDeviceCanAccessPeer(&can, kPeer, kHome) == CUDA_SUCCESS && can != 0;
}

void RegisterRows() {
  if (!HasPeers()) {
    Row("PeerAttach", 1, [](benchmark::State&) {
      throw Failure(Code::kUnsupported,
                    "skipped: needs two GPUs that can access each other's memory");
    });
    return;
  }
  Row("PeerAttach/first", 1, FirstPeerAttach);
  for (const uint64_t size : kSizes) {
    Row(Concat("PeerAttach/", SizeName(size)), 1000,
        [size](benchmark::State& state) { return PeerAttach(state, size); });
  }
  Row("StagedCopy/1GiB", 3, StagedCopy);
  if (!ThisMachine().simulated) Row("PeerRead/1GiB", kCopies, PeerRead);
}

}  // namespace
}  // namespace gpushm::bench

int main(int argc, char** argv) {
  using namespace gpushm::bench;
  return Main(argc, argv, {{RawServer::kRole, RawServer::Serve}}, RegisterRows);
}
