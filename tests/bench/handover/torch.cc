#include "tests/bench/handover/torch.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
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
Result<std::string> FindScript() {
  const std::filesystem::path script = "tests/bench/handover/torch_way.py";
  for (std::filesystem::path folder = OwnFolder(); folder.has_relative_path();
       folder = folder.parent_path()) {
    if (std::filesystem::exists(folder / script)) return (folder / script).string();
  }
  return Fail(Code::kNotFound, Concat("no ", script.string(), " in the folders above the program"));
}

}  // namespace

Result<Torch> Torch::Start(size_t peers) {
  if (ThisMachine().simulated) {
    return Fail(Code::kNotFound, "torch needs a GPU; this driver is simulated");
  }
  if (peers > kTorchPeers) {
    return Fail(Code::kNotFound, Concat("more than ", kTorchPeers, " processes with torch"));
  }
  const Result<std::string> script = FindScript();
  if (!script) return std::unexpected(script.error());
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return FailSystem(errno, "socketpair");
  }
  Channel ours{UniqueFd(ends[0])};
  UniqueFd theirs(ends[1]);
  Result<Process> process = Process::Start(
      "/usr/bin/env", {"python3", *script, std::to_string(theirs.get()), std::to_string(peers)},
      theirs.get(), {});
  if (!process) return std::unexpected(process.error());
  theirs.Reset();  // Otherwise its end would go unnoticed.
  const Result<Heard> heard = ours.Hear(Deadline::AfterMs(kStartMs));
  if (!heard) return Fail(Code::kNotFound, "python3 did not run the torch script");
  if (!heard->text.starts_with("ready")) return Fail(Code::kNotFound, heard->text);
  return Torch(std::move(*process), std::move(ours), peers);
}

Result<std::vector<Board::Sample>> Torch::RunBlock(uint64_t size_bytes, const BlockSize& block) {
  if (auto r = channel_.Say(
          Concat("run ", size_bytes, " ", block.count, " ", block.warm, " ", block.budget_ns));
      !r) {
    return std::unexpected(r.error());
  }
  std::vector<Board::Sample> samples;
  const Deadline deadline =
      Deadline::AfterMs(block.budget_ns / 1'000'000 + 2 * HandoverMs(size_bytes));
  for (;;) {
    const Result<Heard> heard = channel_.Hear(deadline);
    if (!heard) return std::unexpected(heard.error().WithContext("the script of torch"));
    if (heard->text == "ok") return samples;
    std::istringstream in(heard->text);
    std::string verb;
    in >> verb;
    if (verb != "samples") return Fail(Code::kInternal, heard->text);
    for (Board::Sample sample{}; in >> sample.before_ns >> sample.ns >> sample.after_ns;) {
      samples.push_back(sample);
    }
  }
}

}  // namespace gpushm::bench::handover
