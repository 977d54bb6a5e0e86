// The speed of digests: of the processor for bytes in its memory, and of the kernel for those of a
// GPU (on the simulated driver the processor does that, too). `bytes_per_second` is the result.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <vector>

#include "platform/base/digest.h"
#include "platform/driver/device.h"
#include "platform/transfer/device_digest.h"

namespace gpushm {
namespace {

void Processor(benchmark::State& state) {
  const std::vector<std::byte> bytes(static_cast<size_t>(state.range(0)), std::byte{1});
  for (auto _ : state) benchmark::DoNotOptimize(DigestOf(bytes));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(Processor)->Arg(1 << 10)->Arg(64 << 10)->Arg(1 << 20)->Arg(256 << 20);

// `bytes` in ranges of `range_bytes`, which begin at multiples of 256.
void Gpu(benchmark::State& state) {
  const auto api = CudaApi::Load(DriverFolderFromEnvironment());
  if (!api) return state.SkipWithError(api.error().ToString().c_str());
  const auto devices = ListDevices(**api);
  if (!devices) return state.SkipWithError(devices.error().ToString().c_str());
  auto bytes = static_cast<uint64_t>(state.range(0));
  if ((*api)->simulated()) bytes = std::min(bytes, uint64_t{256} << 20);
  const auto range_bytes = std::min(static_cast<uint64_t>(state.range(1)), bytes);
  const auto context = PrimaryContext::Retain(**api, 0);
  if (!context || !context->MakeCurrent()) return state.SkipWithError("no context");
  const auto memory = DeviceMemory::Create(**api, 0, bytes);
  if (!memory) return state.SkipWithError(memory.error().ToString().c_str());
  const auto mapping = DeviceMapping::Map(**api, *memory, bytes, 0, Access::kReadWrite);
  if (!mapping) return state.SkipWithError(mapping.error().ToString().c_str());
  std::vector<DeviceRange> ranges;
  for (uint64_t at = 0; at < bytes; at += range_bytes) {
    ranges.push_back({mapping->address() + at, std::min(range_bytes, bytes - at)});
  }
  DeviceDigest digest(**api, std::max(bytes, DeviceDigest::kKernelBytes));
  if (!digest.Of(ranges)) return state.SkipWithError("no digest");
  if (!digest.by_kernel()) return state.SkipWithError("the driver does not take the kernel");
  for (auto _ : state) benchmark::DoNotOptimize(digest.Of(ranges));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes));
  (void)(*api)->cuCtxSynchronize();
}
constexpr int64_t kBytes = int64_t{16} << 30;
BENCHMARK(Gpu)
    ->Args({kBytes, kBytes})
    ->Args({kBytes, 16 << 20})
    ->Args({kBytes, 64 << 10})
    ->Args({64 << 20, 64 << 20})
    ->Unit(benchmark::kMillisecond);

// Loads the kernel into the driver, as every load of a large file does.
void Kernel(benchmark::State& state) {
  const auto api = CudaApi::Load(DriverFolderFromEnvironment());
  if (!api) return state.SkipWithError(api.error().ToString().c_str());
  if (auto ready = (*api)->Init(); !ready) {
    return state.SkipWithError(ready.error().ToString().c_str());
  }
  const auto context = PrimaryContext::Retain(**api, 0);
  if (!context || !context->MakeCurrent()) return state.SkipWithError("no context");
  for (auto _ : state) {
    DeviceDigest digest(**api, DeviceDigest::kKernelBytes);
    benchmark::DoNotOptimize(digest.Of({}));
  }
}
BENCHMARK(Kernel)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace gpushm

BENCHMARK_MAIN();
