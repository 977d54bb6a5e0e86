// What a run measures: cells with a tensor's size, a number of consumers and possibly a busy
// neighbour. Each cell runs every way in turns.
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
  double limit_s = 250;  // Cells that would begin later are skipped.
  std::regex filter{"."};
  std::string out;  // The JSON's path; empty: no JSON.
};
// Google Benchmark's flags, as `./run bench` passes them, and --quick, --seconds=S, --limit=S.
Settings ParseSettings(int argc, char** argv);

struct Cell {
  uint64_t size_bytes = 0;
  size_t peers = 1;
  bool neighbour = false;
  // "handover/64MiB/4 peers/busy"
  std::string name() const;
  // The reason why this machine cannot measure it; empty: it can.
  std::string why_not() const;
  // The same for the ways that copy through host memory.
  std::string why_no_staging() const;
};
// Ordered so that a session can serve several cells in a row.
std::vector<Cell> PlannedCells(const Settings& settings);

struct Rhythm {
  int blocks = 1;  // Each way has this many turns.
  BlockSize block;
};
// Small tensors get twice the time, for a thousand hand-overs with every way. Cells with several
// consumers, and large ones with a neighbour, get half.
Rhythm RhythmOf(const Cell& cell, const Settings& settings);

}  // namespace gpushm::bench::handover
