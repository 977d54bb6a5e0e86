#include "tests/bench/handover/torch.h"

#include <filesystem>
#include <sstream>
#include <string>
#include <utility>

#include "tests/bench/handover/endpoint.h"

namespace gpushm::bench::handover {
namespace {

// Importing torch and making its contexts takes seconds.
constexpr int64_t kStartMs = 120'000;

// Next to the program in a pack; in the source tree of a build folder.
std::string FindScript() {
  const std::filesystem::path script = "tests/bench/handover/torch_way.py";
  for (std::filesystem::path folder = OwnFolder(); folder.has_relative_path();
       folder = folder.parent_path()) {
    if (std::filesystem::exists(folder / script)) return (folder / script).string();
  }
  throw Failure(Code::kNotFound,
                Concat("no ", script.string(), " in the folders above the program"));
}

}  // namespace

Torch Torch::Start(size_t peers) {
  if (ThisMachine().simulated) {
    throw Failure(Code::kNotFound, "torch needs a GPU; this driver is simulated");
  }
  if (peers > kTorchPeers) {
    throw Failure(Code::kNotFound, Concat("more than ", kTorchPeers, " processes with torch"));
  }
  auto [first, theirs] = SocketPair();
  Channel ours(std::move(first));
  Process process =
      Process::Start("/usr/bin/env",
                     {"python3", FindScript(), std::to_string(theirs.get()), std::to_string(peers)},
                     theirs.get(), {});
  theirs.Reset();  // Otherwise its end would go unnoticed.
  const Result<Heard> heard = ours.Hear(Deadline::AfterMs(kStartMs));
  if (!heard) throw Failure(Code::kNotFound, "python3 did not run the torch script");
  if (!heard->text.starts_with("ready")) throw Failure(Code::kNotFound, heard->text);
  return Torch(std::move(process), std::move(ours), peers);
}

std::vector<Board::Sample> Torch::RunBlock(uint64_t size_bytes, const BlockSize& block) {
  channel_.Say(Concat("run ", size_bytes, " ", block.count, " ", block.warm, " ", block.budget_ns));
  std::vector<Board::Sample> samples;
  const Deadline deadline =
      Deadline::AfterMs(block.budget_ns / 1'000'000 + 2 * HandoverMs(size_bytes));
  for (;;) {
    const Result<Heard> heard = channel_.Hear(deadline);
    if (!heard) throw Failure(heard.error().WithContext("the script of torch"));
    if (heard->text == "ok") return samples;
    std::istringstream in(heard->text);
    std::string verb;
    in >> verb;
    if (verb != "samples") throw Failure(Code::kInternal, heard->text);
    for (Board::Sample sample{}; in >> sample.before_ns >> sample.ns >> sample.after_ns;) {
      samples.push_back(sample);
    }
  }
}

}  // namespace gpushm::bench::handover
