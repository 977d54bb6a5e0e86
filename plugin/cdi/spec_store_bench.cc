// Cost of the store in PreStartContainer (a Write) and at the plugin's start (ReadAll of a full
// node).
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "plugin/cdi/spec_store.h"

namespace gpushm::plugin {
namespace {

// 8 GPUs with 140 units and 64 tokens each; every ID is a separate binding.
constexpr int kMemory = 8 * 140;
constexpr int kAll = kMemory + 8 * 64;

Binding NumberedBinding(int i) {
  char id[16];
  std::snprintf(id, sizeof id, "%c%04d", i < kMemory ? 'm' : 'a', i < kMemory ? i : i - kMemory);
  return {.resource = i < kMemory ? Resource::kMemory : Resource::kAttach,
          .ids = {id},
          .gpus = {"GPU-aaaaaaaa-0000-0000-0000-000000000001"},
          .owner = {.pod = {.name_space = "team-a", .name = "llm-0"}, .container = "server"}};
}

// As BindingEdits makes them for a sidecar.
Edits SidecarEdits() {
  Edits edits;
  edits.device_nodes = {{.host_path = "/dev/nvidia0", .container_path = "/dev/nvidia0"}};
  edits.mounts = {
      {.host_path = "/var/lib/gpushm/links/m0000", .container_path = "/run/gpushm-link"}};
  return edits;
}

class Folder {
 public:
  Folder() {
    std::string pattern = std::filesystem::temp_directory_path() / "gpushm-bench-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  SpecStore Filled() const {
    SpecStore store = *SpecStore::Open(path_);
    for (int i = 0; i < kAll; ++i) (void)store.Write(NumberedBinding(i), SidecarEdits());
    return store;
  }

 private:
  std::string path_;
};

void ReadAllSpecs(benchmark::State& state) {
  const Folder folder;
  const SpecStore store = folder.Filled();
  for (auto _ : state) benchmark::DoNotOptimize(store.ReadAll());
}
BENCHMARK(ReadAllSpecs)->Unit(benchmark::kMillisecond);

void WriteChanged(benchmark::State& state) {
  const Folder folder;
  SpecStore store = folder.Filled();
  Edits edits = SidecarEdits();
  int turn = 0;
  for (auto _ : state) {
    edits.env["TURN"] = std::to_string(++turn);
    benchmark::DoNotOptimize(store.Write(NumberedBinding(0), edits));
  }
}
BENCHMARK(WriteChanged)->Unit(benchmark::kMicrosecond);

void WriteEqual(benchmark::State& state) {
  const Folder folder;
  SpecStore store = folder.Filled();
  const Edits edits = SidecarEdits();
  for (auto _ : state) benchmark::DoNotOptimize(store.Write(NumberedBinding(0), edits));
}
BENCHMARK(WriteEqual)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace gpushm::plugin

BENCHMARK_MAIN();
