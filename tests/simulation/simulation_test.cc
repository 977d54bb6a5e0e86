// Goal: broker, plugin and clients keep the invariants of pod.h, whoever is killed or stopped when.
// Method: each seed is a whole life of a pod, in a process of its own, under a virtual clock. A
// seed that fails is run again, and shows what happened. GPUSHM_TEST_SEED=N runs N alone, or
// GPUSHM_SIMULATION_SEEDS of them from N on. Otherwise the seeds follow from GPUSHM_TEST_OFFSET,
// the commit's number in ./run test: each commit tries others.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "platform/base/status.h"
#include "platform/base/testing.h"
#include "tests/simulation/pod.h"

namespace gpushm::simulation {
namespace {

constexpr uint64_t kSeeds = 100;
constexpr uint64_t kTurns = 1500;

uint64_t Number(const char* variable, uint64_t usual) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : usual;
}

// One process runs at a time, and the turn passes faster on one CPU.
void UseOneCpu() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(sched_getcpu(), &cpus);
  sched_setaffinity(0, sizeof cpus, &cpus);
}

struct Outcome {
  std::string failure;  // With the trace, if it was kept.
  uint64_t hash = 0;
  std::array<uint64_t, Pod::kTallies> tally{};
};

// What the world says, or how its process ended.
Outcome Live(uint64_t seed, bool keep_trace) {
  const gpushm::testing::TempFolder folder;
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    std::filesystem::current_path(folder.path());
    UseOneCpu();
    World world(seed, keep_trace);
    Pod pod(&world, kTurns);
    pod.Live();
    if (FILE* const said = std::fopen("said", "w")) {
      const auto numbers = std::bit_cast<std::array<uint64_t, Pod::kTallies>>(pod.tally());
      for (const uint64_t number : numbers) std::fprintf(said, "%" PRIu64 " ", number);
      std::fprintf(said, "%" PRIu64 "\n", world.hash());
      std::fprintf(said, "%s", world.failure().c_str());
      if (world.failed()) {
        for (const std::string& line : world.trace()) std::fprintf(said, "\n  %s", line.c_str());
      }
      std::fclose(said);
    }
    world.~World();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) return {Concat("the simulation ended with wait status ", status)};
  FILE* const said = std::fopen((folder / "said").c_str(), "r");
  if (said == nullptr) return {"the simulation said nothing"};
  Outcome outcome;
  bool whole = true;
  for (uint64_t& number : outcome.tally)
    whole = whole && std::fscanf(said, "%" SCNu64, &number) == 1;
  if (!whole || std::fscanf(said, "%" SCNu64 "\n", &outcome.hash) != 1) {
    outcome.failure = "the simulation said half of it";
  }
  for (int c = std::fgetc(said); c != EOF; c = std::fgetc(said)) {
    outcome.failure += static_cast<char>(c);
  }
  std::fclose(said);
  return outcome;
}

TEST(SimulationTest, EverySeedKeepsTheInvariants) {
  const bool given = std::getenv("GPUSHM_TEST_SEED") != nullptr;
  const uint64_t seeds = Number("GPUSHM_SIMULATION_SEEDS", given ? 1 : kSeeds);
  const uint64_t first = Number("GPUSHM_TEST_SEED", 1 + Number("GPUSHM_TEST_OFFSET", 0) * kSeeds);
  const bool one = seeds == 1;
  uint64_t failures = 0;
  std::array<uint64_t, Pod::kTallies> sum{};
  for (uint64_t seed = first; seed < first + seeds && failures < 3; ++seed) {
    const Outcome outcome = Live(seed, one);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += outcome.tally[i];
    if (outcome.failure.empty()) continue;
    ++failures;
    ADD_FAILURE() << "GPUSHM_TEST_SEED=" << seed << ": " << Live(seed, true).failure;
  }
  const auto all = std::bit_cast<Pod::Tally>(sum);
  std::printf("%" PRIu64 " grants, %" PRIu64 " failed requests; killed: %" PRIu64
              " brokers (%" PRIu64 " in a callback, %" PRIu64 " as they started), %" PRIu64
              " plugins, %" PRIu64 " clients; %" PRIu64 " leases restored, %" PRIu64
              " successors compared, %" PRIu64 " cells ended\n",
              all.grants, all.requests_failed, all.brokers_killed, all.killed_in_callback,
              all.killed_in_start, all.plugins_killed, all.clients_killed, all.leases_restored,
              all.successors_compared, all.cells_ended);
  if (one || failures > 0) return;
  EXPECT_GT(all.grants, 20 * seeds) << "the seeds are too tame";
  EXPECT_GT(all.killed_in_callback, seeds / 2);
  EXPECT_GT(all.leases_restored, seeds);
  EXPECT_GT(all.successors_compared, seeds / 10);
  EXPECT_GT(all.cells_ended, seeds / 4);
}

TEST(SimulationTest, ASeedRepeatsARunExactly) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    EXPECT_EQ(Live(seed, false).hash, Live(seed, false).hash) << "seed " << seed;
  }
}

}  // namespace
}  // namespace gpushm::simulation
