// What a run measures: cells of a tensor's size, a number of consumers, and a neighbour on the GPU,
// each with every way in turns.
#pragma once

#include <cstdint>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "tests/bench/handover/session.h"

namespace gpushm::bench::handover {

struct Settings {
  bool quick = false;  // Few hand-overs of 2 MiB: for a smoke test.
  double seconds = 2;  // For each way and cell, shared by its blocks; half with several consumers.
  double limit_s = 250;  // Cells that would begin later are left out.
  std::regex filter{"."};
  std::string out;  // The JSON's path; empty: none.
};
// Google Benchmark's flags, as `./run bench` gives them, and --quick, --seconds=S, --limit=S.
Result<Settings> ParseSettings(int argc, char** argv);

struct Cell {
  uint64_t size_bytes = 0;
  size_t peers = 1;
  bool neighbour = false;
  // "handover/64MiB/4 peers/busy"
  std::string name() const;
  // Why it cannot be measured on this machine; empty: it can.
  std::string why_not() const;
  // The same for the ways that copy over host memory.
  std::string why_no_staging() const;
};
// Ordered so that sessions can stay from one to the next.
std::vector<Cell> PlannedCells(const Settings& settings);

struct Rhythm {
  int blocks = 1;  // Each way has so many turns.
  BlockSize block;
};
// Small tensors get twice the seconds, for a thousand hand-overs of every way; cells with several
// consumers, or large ones with a neighbour, half of them.
Rhythm RhythmOf(const Cell& cell, const Settings& settings);

}  // namespace gpushm::bench::handover
