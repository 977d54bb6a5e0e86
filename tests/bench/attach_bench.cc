// A first attach compared with the minimum: one descriptor over a socket, import, reserve, map, set
// access.
//
// Both map the same allocation, read-only, in the same process, in turns; which comes first
// alternates, too. Undoing is not timed. docs/benchmarks/README.md describes each row.
#include <array>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plugin/keeper/keeper.h"
#include "runtime/client/counters.h"
#include "tests/bench/harness.h"
#include "tests/bench/raw.h"

namespace gpushm::bench {
namespace {

constexpr std::array<uint64_t, 4> kSizes = {2 * kMiB, 64 * kMiB, kGiB, 16 * kGiB};
constexpr double kBudgetRatio = 1.3;
// A tenth of 1,161 us: Dynamo's memory service, 64 MiB, session open (H200, 2026-11).
constexpr double kBudgetAgainstDynamoNs = 116'100;
constexpr double kBudgetSecondNs = 1000;
constexpr double kBudgetCountNs = 100;
constexpr int kBatch = 64;
constexpr char kIpcOwner[] = "ipc-owner";
constexpr char kPlugin[] = "plugin";

std::string BufferName(uint64_t size_bytes) {
  return size_bytes >= kGiB ? Concat("b", size_bytes / kGiB, "g")
                            : Concat("b", size_bytes / kMiB, "m");
}

// Sizes for which this card has room twice, besides contexts.
bool Fits(uint64_t size_bytes) {
  if (ThisMachine().simulated) return size_bytes <= kGiB;
  return 3 * size_bytes < ThisMachine().device.total_bytes;
}

// One broker with a buffer of each size, and one connection, made at the first use.
struct Setup {
  Broker broker;
  Connection connection;
};
Setup* TheSetup() {
  static std::optional<Setup> setup;
  if (setup) return &*setup;
  Broker::Options options;
  for (const uint64_t size : kSizes) {
    if (Fits(size)) options.buffers.emplace_back(BufferName(size), size);
  }
  Broker broker = Broker::Start(options);
  Connection connection = Connection::To(broker);
  setup.emplace(std::move(broker), std::move(connection));
  return &*setup;
}

struct Timed {
  int64_t make_ns = 0;
  int64_t undo_ns = 0;
};

Timed TimeOurs(gpushm_client* client, const std::string& name) {
  gpushm_attachment* attachment = nullptr;
  const int64_t start = MonotonicNs();
  const gpushm_status attached = gpushm_attach(client, name.c_str(), nullptr, &attachment);
  const int64_t made = MonotonicNs();
  Check(attached, "gpushm_attach");
  benchmark::DoNotOptimize(gpushm_attachment_address(attachment));
  const int64_t undo = MonotonicNs();
  const gpushm_status detached = gpushm_attachment_detach(attachment, nullptr);
  const int64_t end = MonotonicNs();
  Check(detached, "gpushm_attachment_detach");
  return Timed{made - start, end - undo};
}

// The driver's calls by hand, as an application without gpushm would write them.
Timed TimeRaw(RawServer& server, uint64_t size_bytes) {
  const CudaApi& api = *ThisMachine().api;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  CUmemAccessDesc rights{};
  rights.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  rights.location.id = ThisMachine().device.device;
  rights.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  CUresult result = CUDA_SUCCESS;
  const auto step = [&](CUresult next) {
    if (result == CUDA_SUCCESS) result = next;
  };
  const int64_t start = MonotonicNs();
  const UniqueFd descriptor = server.Fetch();
  void* const shareable = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor.get()));
  step(api.cuMemImportFromShareableHandle(&handle, shareable,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  step(api.cuMemAddressReserve(&address, size_bytes, 0, 0, 0));
  step(api.cuMemMap(address, size_bytes, 0, handle, 0));
  step(api.cuMemSetAccess(address, size_bytes, &rights, 1));
  const int64_t made = MonotonicNs();
  Must(api.Check(result, "the raw attach"));
  const int64_t undo = MonotonicNs();
  step(api.cuMemUnmap(address, size_bytes));
  step(api.cuMemAddressFree(address, size_bytes));
  step(api.cuMemRelease(handle));
  const int64_t end = MonotonicNs();
  Must(api.Check(result, "the raw detach"));
  return Timed{made - start, end - undo};
}

// ---------------------------------------------------------------- what the plugin's link costs

// The keeper of the node's plugin, with one allocation on the GPU with the given UUID.
void KeepBrokers(Channel& parent, const std::vector<std::string>& arguments) {
  plugin::keeper::Keeper::Options options;
  options.links_folder = arguments.at(0);
  options.on_link = [](const std::string&, bool) {};
  const char* const simulated_state = std::getenv("GPUSHM_SIM_DIR");
  if (simulated_state != nullptr) options.settings.memory = MemoryKind::Of(simulated_state);
  const auto keeper = Must(plugin::keeper::Keeper::Start(std::move(options)));
  Must(keeper->Open("m0000", {.gpus = {arguments.at(1)}, .pool_bytes = 1024 * kGiB}));
  parent.Say("ready");
  static_cast<void>(parent.Hear(Deadline::AfterMs(10 * kStepMs)));  // Until the parent is done.
}

// The same attach with a broker that reports it to a plugin, and with one that has no plugin, in
// turns.
void FirstAttachLinked(benchmark::State& state) {
  NeedContext();
  const Setup* alone = TheSetup();
  const std::filesystem::path links = ThisMachine().work / "links";
  std::filesystem::create_directories(links / "m0000");
  std::filesystem::permissions(links, std::filesystem::perms::owner_all);
  Child plugin = Child::Start(kPlugin, {links.string(), ThisMachine().device.uuid.ToString()});
  plugin.Expect("ready", Deadline::AfterMs(kStepMs));
  Broker::Options options;
  const std::string name = BufferName(64 * kMiB);
  options.buffers.emplace_back(name, 64 * kMiB);
  options.link = (links / "m0000").string();
  const Broker broker = Broker::Start(options);
  const Connection linked = Connection::To(broker);
  InTurns(
      state, [&] { return TimeOurs(linked.get(), name).make_ns; },
      [&] { return TimeOurs(alone->connection.get(), name).make_ns; });
  state.SetLabel("baseline: the same without a plugin");
}

using Part = int64_t Timed::*;

// gpushm and the raw calls in turns; `part` selects what the row shows.
void Compare(benchmark::State& state, uint64_t size_bytes, Part part, double budget_ratio) {
  const Setup* setup = TheSetup();
  const std::string name = BufferName(size_bytes);
  const BorrowedDescriptor descriptor = BorrowedDescriptor::Borrow(setup->broker.folder(), name);
  RawServer server = RawServer::Start(descriptor.get());
  InTurns(
      state, [&] { return TimeOurs(setup->connection.get(), name).*part; },
      [&] { return TimeRaw(server, size_bytes).*part; });
  if (budget_ratio > 0) state.counters["budget_ratio"] = budget_ratio;
  if (budget_ratio > 0 && !ThisMachine().simulated) {
    state.counters["budget_p50_ns"] = kBudgetAgainstDynamoNs;
  }
}

void AttachWithoutContext(benchmark::State& state, uint64_t size_bytes) {
  if (HasContext()) throw Failure(Code::kInternal, "this process already has a context");
  Compare(state, size_bytes, &Timed::make_ns, 0);
}

// The same while the process holds another buffer: does the driver set up again what it tore down?
void AttachBesideAnother(benchmark::State& state) {
  const Setup* setup = TheSetup();
  gpushm_attachment* other = nullptr;
  const std::string name = BufferName(2 * kMiB);
  Check(gpushm_attach(setup->connection.get(), name.c_str(), nullptr, &other), "gpushm_attach");
  AttachWithoutContext(state, 64 * kMiB);
  gpushm_attachment_detach(other, nullptr);
}

void FirstAttach(benchmark::State& state, uint64_t size_bytes) {
  NeedContext();
  Compare(state, size_bytes, &Timed::make_ns, size_bytes == 64 * kMiB ? kBudgetRatio : 0);
}

void Detach(benchmark::State& state, uint64_t size_bytes) {
  NeedContext();
  Compare(state, size_bytes, &Timed::undo_ns, 0);
}

// While the process already holds it: means of batches, because the clock costs as much as a call.
void SecondAttach(benchmark::State& state) {
  const Setup* setup = TheSetup();
  gpushm_client* const client = setup->connection.get();
  const std::string name = BufferName(64 * kMiB);
  gpushm_attachment* attachment = nullptr;
  Check(gpushm_attach(client, name.c_str(), nullptr, &attachment), "attach");
  int failed = 0;
  Repeat(state, [&] {
    gpushm_attachment* again = nullptr;
    const int64_t start = MonotonicNs();
    for (int i = 0; i < kBatch; ++i) {
      failed += gpushm_attach(client, name.c_str(), nullptr, &again) == GPUSHM_OK ? 0 : 1;
    }
    const int64_t end = MonotonicNs();
    for (int i = 0; i < kBatch; ++i) gpushm_attachment_detach(again, nullptr);
    return static_cast<double>(end - start) / kBatch;
  });
  gpushm_attachment_detach(attachment, nullptr);
  if (failed > 0) throw Failure(Code::kInternal, "a second attach failed");
  state.counters["budget_p50_ns"] = kBudgetSecondNs;
}

// The additional cost of counting: into a page of shared memory, like the one that a broker gives.
void CountOne(benchmark::State& state) {
  constexpr uint64_t kBytes = sizeof(protocol::CounterPage);
  const auto page = Must(MakeSealed("counters", kBytes, Writers::kAll));
  auto mapped = Must(MapSealed(page.fd, "counters", kBytes, kBytes, Writers::kAll));
  client::Counters counters;
  counters.Use(std::move(mapped));
  Repeat(state, [&] {
    const int64_t start = MonotonicNs();
    for (int i = 0; i < kBatch; ++i) counters.Add(protocol::Counter::kCachedAttaches);
    return static_cast<double>(MonotonicNs() - start) / kBatch;
  });
  state.counters["budget_p50_ns"] = kBudgetCountNs;
}

// Connects and attaches, as a new session does; the context already exists.
void OpenAndAttach(benchmark::State& state) {
  NeedContext();
  const Setup* setup = TheSetup();
  const std::string name = BufferName(64 * kMiB);
  Repeat(state, [&] {
    const int64_t start = MonotonicNs();
    const Connection connection = Connection::Open(setup->broker.folder());
    gpushm_attachment* attachment = nullptr;
    Check(gpushm_attach(connection.get(), name.c_str(), nullptr, &attachment), "gpushm_attach");
    const int64_t took = MonotonicNs() - start;
    gpushm_attachment_detach(attachment, nullptr);
    return took;
  });
}

// ---------------------------------------------------------------- CUDA's own way

// Another process with cudaMalloc memory of a given size, which sends its cuIpc handle as text.
void OwnIpcMemory(Channel& parent, const std::vector<std::string>& arguments) {
  FindDriver();
  NeedContext();
  const CudaApi& api = *ThisMachine().api;
  CUdeviceptr address = 0;
  Must(api.Check(api.cuMemAlloc(&address, std::stoull(arguments.at(0))), "cuMemAlloc"));
  CUipcMemHandle handle{};
  Must(api.Check(api.cuIpcGetMemHandle(&handle, address), "cuIpcGetMemHandle"));
  parent.Say({handle.reserved, sizeof handle.reserved});
  static_cast<void>(parent.Hear(Deadline::AfterMs(10 * kStepMs)));  // Until the parent is done.
}

void CudaIpcOpen(benchmark::State& state, uint64_t size_bytes) {
  NeedContext();
  Child owner = Child::Start(kIpcOwner, {std::to_string(size_bytes)});
  const Heard heard = Must(owner.channel().Hear(Deadline::AfterMs(kStepMs)));
  CUipcMemHandle handle{};
  if (heard.text.size() != sizeof handle.reserved) throw Failure(Code::kInternal, heard.text);
  heard.text.copy(handle.reserved, sizeof handle.reserved);
  const CudaApi& api = *ThisMachine().api;
  Repeat(state, [&] {
    CUdeviceptr address = 0;
    const int64_t start = MonotonicNs();
    const CUresult opened =
        api.cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    const int64_t took = MonotonicNs() - start;
    Must(api.Check(opened, "cuIpcOpenMemHandle"));
    Must(api.Check(api.cuIpcCloseMemHandle(address), "cuIpcCloseMemHandle"));
    return took;
  });
  state.SetLabel("what CUDA's own IPC costs, the handle being there");
}

// ---------------------------------------------------------------- moving the bytes instead

// Copies a device buffer to the host and from there to another one, as two processes do today.
Samples TimeStaging(std::byte* host, uint64_t size_bytes, int64_t count) {
  const CudaApi& api = *ThisMachine().api;
  std::array<CUdeviceptr, 2> ends{};
  for (CUdeviceptr& end : ends) {
    Must(api.Check(api.cuMemAlloc(&end, size_bytes), "cuMemAlloc"));
  }
  Samples samples;
  for (int64_t i = -1; i < count; ++i) {  // The first one warms up.
    const int64_t start = MonotonicNs();
    Must(api.Check(api.cuMemcpyDtoH(host, ends[0], size_bytes), "cuMemcpyDtoH"));
    Must(api.Check(api.cuMemcpyHtoD(ends[1], host, size_bytes), "cuMemcpyHtoD"));
    Must(api.Check(api.cuCtxSynchronize(), "cuCtxSynchronize"));
    if (i >= 0) samples.Add(MonotonicNs() - start);
  }
  for (const CUdeviceptr end : ends) api.cuMemFree(end);
  return samples;
}

void AttachInsteadOfStaging(benchmark::State& state, uint64_t size_bytes, bool pinned) {
  NeedContext();
  const Setup* setup = TheSetup();
  Samples ours;
  for (auto _ : state) {
    const Timed timed = TimeOurs(setup->connection.get(), BufferName(size_bytes));
    ours.Add(timed.make_ns);
    state.SetIterationTime(static_cast<double>(timed.make_ns) / 1e9);
  }
  const int64_t count = size_bytes >= kGiB ? 10 : 50;
  std::optional<PinnedBuffer> locked;
  std::unique_ptr<std::byte[]> pageable;
  if (pinned) {
    locked.emplace(Must(PinnedBuffer::Allocate(*ThisMachine().api, size_bytes)));
  } else {
    pageable = std::make_unique<std::byte[]>(size_bytes);
  }
  const Samples staging = TimeStaging(pinned ? locked->data() : pageable.get(), size_bytes, count);
  Show(state, Ours{ours}, Baseline{staging});
  state.SetLabel(Concat("staging: n=", count));
}

void RegisterRows() {
  const auto count = [](uint64_t size_bytes) { return size_bytes > kGiB ? 200 : 2000; };
  for (const uint64_t size : kSizes) {
    if (!Fits(size)) continue;
    Row(Concat("AttachWithoutContext/", SizeName(size)), count(size) / 2,
        [size](benchmark::State& state) { return AttachWithoutContext(state, size); });
  }
  Row("AttachWithoutContext/64MiB/holding 2MiB", 1000, AttachBesideAnother);
  for (const uint64_t size : kSizes) {
    if (!Fits(size)) {
      Row(Concat("FirstAttach/", SizeName(size)), 1, [](benchmark::State&) {
        throw Failure(Code::kExhausted, "skipped: the card is too small, or simulated");
      });
      continue;
    }
    Row(Concat("FirstAttach/", SizeName(size)), count(size),
        [size](benchmark::State& state) { return FirstAttach(state, size); });
    Row(Concat("Detach/", SizeName(size)), count(size) / 2,
        [size](benchmark::State& state) { return Detach(state, size); });
    Row(Concat("CudaIpcOpen/", SizeName(size)), count(size) / 2,
        [size](benchmark::State& state) { return CudaIpcOpen(state, size); });
  }
  Row("FirstAttach/64MiB/linked", 2000, FirstAttachLinked);
  Row("SecondAttach", 20'000, SecondAttach);
  Row("SecondAttach/counting alone", 20'000, CountOne);
  Row("OpenAndAttach/64MiB", 1000, OpenAndAttach);
  for (const uint64_t size : {64 * kMiB, kGiB}) {
    for (const bool pinned : {true, false}) {
      Row(Concat("AttachInsteadOfStaging/", SizeName(size), pinned ? "/pinned" : "/pageable"), 100,
          [size, pinned](benchmark::State& state) {
            return AttachInsteadOfStaging(state, size, pinned);
          });
    }
  }
}

}  // namespace
}  // namespace gpushm::bench

int main(int argc, char** argv) {
  using namespace gpushm::bench;
  return Main(
      argc, argv,
      {{RawServer::kRole, RawServer::Serve}, {kIpcOwner, OwnIpcMemory}, {kPlugin, KeepBrokers}},
      RegisterRows);
}
