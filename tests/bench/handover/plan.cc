#include "tests/bench/handover/plan.h"

#include <array>
#include <cstdlib>
#include <fstream>

namespace gpushm::bench::handover {
namespace {

constexpr uint64_t kContextBytes = 600 * kMiB;  // 523 MiB, measured on an H200.
constexpr uint64_t kSmall = 2 * kMiB;
constexpr uint64_t kSimulatedBytes = 64 * kMiB;
constexpr size_t kSimulatedPeers = 4;

bool TakeFlag(std::string_view argument, std::string_view name, std::string* value) {
  if (!argument.starts_with(name)) return false;
  *value = argument.substr(name.size());
  return true;
}

}  // namespace

Settings ParseSettings(int argc, char** argv) {
  Settings settings;
  std::string value;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (TakeFlag(argument, "--benchmark_filter=", &value)) {
      settings.filter = std::regex(value);
    } else if (TakeFlag(argument, "--benchmark_out=", &value)) {
      settings.out = value;
    } else if (TakeFlag(argument, "--seconds=", &value)) {
      settings.seconds = std::atof(value.c_str());
    } else if (TakeFlag(argument, "--limit=", &value)) {
      settings.limit_s = std::atof(value.c_str());
    } else if (argument == "--quick") {
      settings.quick = true;
    } else if (!argument.starts_with("--benchmark_out_format=")) {
      throw Failure(Fail(Code::kInvalidArgument, Concat("unknown argument ", argument),
                         "--quick, --seconds=S, --limit=S, --benchmark_filter=REGEX, "
                         "--benchmark_out=FILE are known"));
    }
  }
  return settings;
}

std::string Cell::name() const {
  return Concat("handover/", SizeName(size_bytes), "/", peers, peers == 1 ? " peer/" : " peers/",
                neighbour ? "busy" : "idle");
}

std::string Cell::why_not() const {
  const Machine& machine = ThisMachine();
  if (machine.simulated) {
    if (neighbour) return "the simulated driver runs no kernels, so no neighbour keeps it busy";
    if (size_bytes > kSimulatedBytes || peers > kSimulatedPeers) {
      return "too much for the simulated driver, which copies on the CPU";
    }
    return {};
  }
  // Two tensors, if one replaces the other, and a copy at each consumer that stages.
  const uint64_t needed = (2 + peers) * size_bytes + (2 + peers) * kContextBytes;
  if (needed > machine.device.total_bytes) return "the card is too small";
  return {};
}

std::string Cell::why_no_staging() const {
  std::ifstream in("/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("MemAvailable:")) continue;
    const uint64_t available = std::stoull(line.substr(line.find(':') + 1)) * kKiB;
    if (available < 2 * size_bytes) return "the host has too little memory for a copy";
  }
  return {};
}

std::vector<Cell> PlannedCells(const Settings& settings) {
  constexpr uint64_t kMiddle = 64 * kMiB;
  if (settings.quick) return {{kSmall, 1, false}, {kSmall, 3, false}, {kSmall, 1, true}};
  std::vector<Cell> cells;
  for (const uint64_t size : {kSmall, 16 * kMiB, kMiddle, 256 * kMiB, kGiB, 4 * kGiB, 16 * kGiB}) {
    cells.push_back({size, 1, false});
  }
  for (const uint64_t size : {kSmall, kMiddle, kGiB}) cells.push_back({size, 1, true});
  for (const size_t peers : {size_t{4}, size_t{16}, kMaxPeers}) {
    for (const uint64_t size : {kSmall, kMiddle}) cells.push_back({size, peers, false});
  }
  cells.push_back({kSmall, 16, true});
  return cells;
}

Rhythm RhythmOf(const Cell& cell, const Settings& settings) {
  if (settings.quick) return {2, {.count = 5, .warm = 1, .budget_ns = 2'000'000'000}};
  Rhythm rhythm;
  if (cell.size_bytes <= 64 * kMiB) {
    rhythm = {5, {.count = 200, .warm = 10}};
  } else if (cell.size_bytes <= kGiB) {
    rhythm = {5, {.count = 40, .warm = 2}};
  } else {
    rhythm = {3, {.count = 10, .warm = 1}};
  }
  double share = 1;
  if (cell.peers > 1 || (cell.neighbour && cell.size_bytes > kSmall)) share = 0.5;
  if (cell.size_bytes <= 16 * kMiB && cell.peers == 1 && !cell.neighbour) share = 2;
  rhythm.block.budget_ns = static_cast<int64_t>(settings.seconds * share * 1e9 / rhythm.blocks);
  return rhythm;
}

}  // namespace gpushm::bench::handover
