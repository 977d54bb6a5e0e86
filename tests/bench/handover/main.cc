// How a producer hands a tensor to consumers on the same GPU: every way in one run, in turns.
// docs/design/handover.md says between which moments the time is measured.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/handover/endpoint.h"
#include "tests/bench/handover/plan.h"
#include "tests/bench/handover/session.h"
#include "tests/bench/handover/torch.h"

namespace gpushm::bench::handover {
namespace {

using Json = nlohmann::ordered_json;

// The ways to which ratios refer: the minimum and gpushm's, with kept and with new memory.
constexpr std::array kReferences = {"gpushm-signal", "gpushm-ring", "gpushm-new", "raw-held",
                                    "raw-new"};

// One way in one cell.
struct Entry {
  std::string name;
  std::string title;
  std::string_view kind;
  const Way* way = nullptr;  // Null for torch.
  std::vector<Board::Sample> samples = {};
  std::string left_out = {};  // Why it was not tried.
  std::string error = {};     // Why it failed.
  bool open() const { return left_out.empty() && error.empty(); }
};

Samples Of(const std::vector<Board::Sample>& samples, int64_t Board::Sample::* part) {
  Samples one;
  for (const Board::Sample& sample : samples) one.Add(sample.*part);
  return one;
}

// "2026-11-22T10:00:00+00:00"
std::string Now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 40> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S+00:00", &utc);
  return text.data();
}

class Run {
 public:
  explicit Run(Settings settings)
      : settings_(std::move(settings)),
        end_(Deadline::AfterMs(static_cast<int64_t>(settings_.limit_s * 1000))) {}
  // Whether every way that was tried handed over the right values.
  bool All();
  void Write() const;

 private:
  std::vector<Entry> EntriesOf(const Cell& cell) const;
  void Measure(const Cell& cell, std::vector<Entry>& entries);
  void RunBlock(const Cell& cell, Entry& entry, const BlockSize& block, bool staging);
  std::vector<Board::Sample> RunOurs(const Cell& cell, const Way& way, const BlockSize& block,
                                     bool staging);
  std::vector<Board::Sample> RunTorch(const Cell& cell, const BlockSize& block, Entry& entry);
  void Add(const Cell& cell, const std::vector<Entry>& entries);

  Settings settings_;
  Deadline end_;
  std::unique_ptr<Session> session_;
  bool cell_set_ = false;  // In that session.
  std::optional<Torch> torch_;
  Json rows_ = Json::array();
  bool good_ = true;
};

std::vector<Entry> Run::EntriesOf(const Cell& cell) const {
  std::vector<Entry> entries;
  for (const Way& way : Ways()) {
    entries.push_back({.name = Concat(cell.name(), "/", way.name),
                       .title = std::string(way.title),
                       .kind = KindName(way.kind),
                       .way = &way});
  }
  entries.push_back({.name = Concat(cell.name(), "/", kTorchName),
                     .title = std::string(kTorchTitle),
                     .kind = KindName(Kind::kNew)});
  std::erase_if(entries, [this](const Entry& entry) {
    return !std::regex_search(entry.name, settings_.filter);
  });
  return entries;
}

std::vector<Board::Sample> Run::RunOurs(const Cell& cell, const Way& way, const BlockSize& block,
                                        bool staging) {
  if (!session_ || session_->options().peers != cell.peers ||
      session_->options().neighbour != cell.neighbour) {
    session_.reset();
    cell_set_ = false;
    session_ = std::make_unique<Session>(Session::Options{
        .peers = cell.peers, .neighbour = cell.neighbour, .pool_bytes = PoolBytes()});
  }
  if (!cell_set_) {
    session_->SetCell(cell.size_bytes, staging);
    cell_set_ = true;
  }
  return session_->RunBlock(way, block);
}

std::vector<Board::Sample> Run::RunTorch(const Cell& cell, const BlockSize& block, Entry& entry) {
  if (!torch_ || torch_->peers() != cell.peers) {
    torch_.reset();
    try {
      torch_.emplace(Torch::Start(cell.peers));
    } catch (const Failure& failure) {
      entry.left_out = failure.status.what();
      return {};
    }
  }
  return torch_->RunBlock(cell.size_bytes, block);
}

void Run::RunBlock(const Cell& cell, Entry& entry, const BlockSize& block, bool staging) {
  try {
    const auto samples = entry.way != nullptr ? RunOurs(cell, *entry.way, block, staging)
                                              : RunTorch(cell, block, entry);
    entry.samples.insert(entry.samples.end(), samples.begin(), samples.end());
  } catch (const Failure& failure) {
    entry.error = failure.status.what();
    if (entry.way == nullptr) {
      torch_.reset();
    } else {
      session_.reset();  // Its processes may be in any state.
    }
  }
}

void Run::Measure(const Cell& cell, std::vector<Entry>& entries) {
  bool staging = false;
  for (Entry& entry : entries) {
    if (entry.way == nullptr || entry.way->kind != Kind::kCopy) continue;
    entry.left_out = cell.why_no_staging();
    staging = staging || entry.open();
  }
  const Rhythm rhythm = RhythmOf(cell, settings_);
  cell_set_ = false;
  for (int block = 0; block < rhythm.blocks; ++block) {
    // Each round begins with another way, and every other round uses the reverse order.
    for (size_t i = 0; i < entries.size(); ++i) {
      const size_t turn = block % 2 == 0 ? i : entries.size() - 1 - i;
      Entry& entry = entries[(turn + static_cast<size_t>(block)) % entries.size()];
      if (entry.open()) RunBlock(cell, entry, rhythm.block, staging);
    }
  }
}

void Run::Add(const Cell& cell, const std::vector<Entry>& entries) {
  std::map<std::string, double> p50;  // By way.
  for (const Entry& entry : entries) {
    if (entry.open() && entry.way != nullptr) {
      p50[std::string(entry.way->name)] = Of(entry.samples, &Board::Sample::ns).Percentile(0.5);
    }
  }
  for (const Entry& entry : entries) {
    Json row = {{"name", entry.name},
                {"run_type", "iteration"},
                {"way", entry.name.substr(entry.name.rfind('/') + 1)},
                {"label", entry.title},
                {"kind", entry.kind},
                {"tensor_size", cell.size_bytes},
                {"peers", cell.peers},
                {"neighbour", cell.neighbour}};
    if (!entry.open()) {
      row["error_occurred"] = true;
      row["left_out"] = entry.error.empty();
      row["error_message"] = entry.error.empty() ? "left out: " + entry.left_out : entry.error;
      good_ = good_ && entry.error.empty();
      std::printf("%-40s %s\n", entry.name.c_str(),
                  row["error_message"].get<std::string>().c_str());
    } else {
      const Samples times = Of(entry.samples, &Board::Sample::ns);
      const double median = times.Percentile(0.5);
      row["real_time"] = median / 1000;
      row["time_unit"] = "us";
      row["p50_ns"] = median;
      row["p99_ns"] = times.Percentile(0.99);
      row["n"] = times.size();
      row["before_p50_ns"] = Of(entry.samples, &Board::Sample::before_ns).Percentile(0.5);
      row["after_p50_ns"] = Of(entry.samples, &Board::Sample::after_ns).Percentile(0.5);
      for (const char* reference : kReferences) {
        const auto found = p50.find(reference);
        if (found == p50.end() || found->second <= 0) continue;
        row["ratios"][reference] = median / found->second;
      }
      std::printf("%-40s p50 %12.1f us  p99 %12.1f us  n %zu\n", entry.name.c_str(), median / 1000,
                  times.Percentile(0.99) / 1000, times.size());
    }
    rows_.push_back(std::move(row));
  }
  std::fflush(stdout);
}

bool Run::All() {
  for (const Cell& cell : PlannedCells(settings_)) {
    std::vector<Entry> entries = EntriesOf(cell);
    if (entries.empty()) continue;
    std::string why_not = cell.why_not();
    if (why_not.empty() && end_.Passed()) {
      why_not = Concat("the run's ", settings_.limit_s, " s had passed");
    }
    if (why_not.empty()) {
      Measure(cell, entries);
    } else {
      for (Entry& entry : entries) entry.left_out = why_not;
    }
    Add(cell, entries);
  }
  session_.reset();
  torch_.reset();
  return good_;
}

void Run::Write() const {
  if (settings_.out.empty()) return;
  Json context = {{"date", Now()}};
  for (const auto& [name, value] : MachineFacts()) context[name] = value;
  std::ofstream out(settings_.out);
  out << Json{{"context", context}, {"benchmarks", rows_}}.dump(1) << "\n";
  if (!out.flush()) throw Failure(Code::kSystem, Concat("cannot write ", settings_.out));
}

int RunAndWrite(int argc, char** argv) {
  Run run(ParseSettings(argc, argv));
  const bool good = run.All();
  run.Write();
  return good ? 0 : 1;
}

}  // namespace
}  // namespace gpushm::bench::handover

int main(int argc, char** argv) {
  using namespace gpushm::bench;
  using namespace gpushm::bench::handover;
  return RunOnMachine(argc, argv,
                      {{kProducer, Produce}, {kConsumer, Consume}, {kNeighbour, KeepBusy}},
                      [&] { return RunAndWrite(argc, argv); });
}
