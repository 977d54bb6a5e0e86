// Budgets of the library: look-up and cached attach, on the simulated driver and the fake broker
// (neither is asked in what is measured here).
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "runtime/client/fake_broker.h"
#include "runtime/include/gpushm/gpushm.h"

namespace gpushm::client {
namespace {

struct World {
  World() {
    std::string name = "/tmp/gpushm-bench-XXXXXX";
    folder = mkdtemp(name.data());
    const CudaApi* api = *CudaApi::Load(DriverFolderFromEnvironment());
    broker = std::make_unique<FakeBroker>(folder, 1, ListDevices(*api)->front().uuid);
    broker->Add("weights", 5, uint64_t{1} << 20, api);
    gpushm_open_options options;
    GPUSHM_INIT(&options);
    options.folder = folder.c_str();
    if (gpushm_open(&options, &client) != GPUSHM_OK ||
        gpushm_attach(client, "weights", nullptr, &attachment) != GPUSHM_OK) {
      std::abort();
    }
  }
  std::string folder;
  std::unique_ptr<FakeBroker> broker;
  gpushm_client* client = nullptr;
  gpushm_attachment* attachment = nullptr;
};

World& TheWorld() {
  static World* const world = new World();
  return *world;
}

void Lookup(benchmark::State& state) {
  gpushm_info info;
  GPUSHM_INIT(&info);
  for (auto _ : state) gpushm_lookup(TheWorld().client, "weights", &info);
}
BENCHMARK(Lookup);

void Current(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(gpushm_current(TheWorld().attachment));
}
BENCHMARK(Current);

void AttachHeldAndDetach(benchmark::State& state) {
  gpushm_attachment* attachment = nullptr;
  for (auto _ : state) {
    gpushm_attach(TheWorld().client, "weights", nullptr, &attachment);
    gpushm_detach(attachment, nullptr);
  }
}
BENCHMARK(AttachHeldAndDetach);

}  // namespace
}  // namespace gpushm::client

BENCHMARK_MAIN();
