#include "tests/bench/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <span>

#include "contract/limits.h"
#include "contract/protocol/channel.h"
#include "tests/bench/harness.h"

namespace gpushm::bench {
namespace {

constexpr int kPatienceMs = 5000;

void RunProgram(const std::filesystem::path& program, char* const* words, int kept, int log) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (kept >= 0) fcntl(kept, F_SETFD, 0);
  if (log >= 0) {
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
  }
  execv(program.c_str(), words);
  _exit(127);
}

}  // namespace

std::filesystem::path OwnFolder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

// ---------------------------------------------------------------- Channel

void Channel::Say(std::string_view text, int descriptor) {
  const std::span<const int> descriptors(&descriptor, descriptor >= 0 ? 1U : 0U);
  Must(protocol::Send(socket_.get(), std::as_bytes(std::span(text.data(), text.size())),
                      descriptors, Deadline::AfterMs(kStepMs)));
}

Result<Heard> Channel::Hear(const Deadline& deadline) {
  protocol::Message message;
  if (auto r = protocol::Receive(socket_.get(), &message, deadline); !r) {
    return std::unexpected(r.error());
  }
  const std::span<const std::byte> bytes = message.span();
  Heard heard;
  heard.text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!message.descriptors.empty()) heard.descriptor = std::move(message.descriptors.front());
  return heard;
}

std::pair<UniqueFd, UniqueFd> SocketPair() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw Failure(FailSystem(errno, "socketpair"));
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

UniqueFd MakeShared(uint64_t size_bytes) {
  UniqueFd made(memfd_create("gpushm-bench", MFD_CLOEXEC));
  if (!made || ftruncate(made.get(), static_cast<off_t>(size_bytes)) != 0) {
    throw Failure(FailSystem(errno, "memfd_create"));
  }
  return made;
}

std::shared_ptr<void> MapShared(int descriptor, uint64_t size_bytes) {
  void* const at = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (at == MAP_FAILED) throw Failure(FailSystem(errno, "mmap"));
  return {at, [size_bytes](void* mapped) { munmap(mapped, size_bytes); }};
}

// ---------------------------------------------------------------- Process

Process Process::Start(const std::filesystem::path& program,
                       const std::vector<std::string>& arguments, int kept,
                       const std::filesystem::path& log) {
  std::vector<std::string> texts = {program.filename().string()};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<char*> words;
  for (std::string& text : texts) words.push_back(text.data());
  words.push_back(nullptr);
  UniqueFd output;
  if (!log.empty()) {
    output.Reset(open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!output) throw Failure(FailSystem(errno, Concat("open ", log.string())));
  }
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid < 0) throw Failure(FailSystem(errno, "fork"));
  if (pid == 0) RunProgram(program, words.data(), kept, output.get());
  return Process(pid, UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))));
}

bool Process::Ended() const {
  pollfd poller{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  return poll(&poller, 1, 0) > 0;
}

void Process::Kill() {
  if (pid_ > 0) kill(pid_, SIGKILL);
}

void Process::Stop() {
  if (pid_ <= 0) return;
  kill(pid_, SIGTERM);
  pollfd poller{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  if (poll(&poller, 1, kPatienceMs) <= 0) Kill();
  Reap();
}

void Process::Reap() {
  if (pid_ > 0) waitpid(std::exchange(pid_, -1), nullptr, 0);
}

Process::~Process() {
  Kill();
  Reap();
}

// ---------------------------------------------------------------- Child

Child Child::Start(const std::string& role, const std::vector<std::string>& arguments) {
  auto [ours, theirs] = SocketPair();
  std::vector<std::string> words = {"--role", role, std::to_string(theirs.get())};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return Child(Process::Start("/proc/self/exe", words, theirs.get(), {}), Channel(std::move(ours)));
}

void Child::Expect(std::string_view expected, const Deadline& deadline) {
  const Result<Heard> heard = channel_.Hear(deadline);
  if (!heard) throw Failure(heard.error().WithContext("a child process"));
  if (heard->text == expected) return;
  throw Failure(Code::kInternal, Concat("unexpected message from a child process: ", heard->text));
}

// ---------------------------------------------------------------- Broker

Broker Broker::Start(const Options& options) {
  static int number = 0;
  const std::filesystem::path folder = ThisMachine().work / Concat("broker-", ++number);
  std::filesystem::create_directories(folder);
  uint64_t pool_bytes = options.extra_bytes;
  std::ofstream out(folder / "broker.yaml");
  out << "folder: " << folder.string() << "\ngpu: " << ThisMachine().device.device << "\n";
  if (!options.buffers.empty()) out << "annotations:\n";
  for (const auto& [name, size_bytes] : options.buffers) {
    // Whole MiB, written short: thousands of buffers must fit in yaml::kConfigBytes.
    out << "  buffers.gpushm.io/" << name << ": " << size_bytes / kMiB << "Mi\n";
    pool_bytes += RoundUp(size_bytes, ThisMachine().device.granularity);
  }
  out.close();
  const std::filesystem::path program = OwnFolder().parent_path() / "bin" / "gpushm-broker";
  if (!std::filesystem::exists(program)) {
    throw Failure(Fail(Code::kNotFound, Concat("there is no ", program.string()),
                       "build the target gpushm-broker"));
  }
  Process process = Process::Start(
      program,
      {"--config", (folder / "broker.yaml").string(), "--pool", std::to_string(pool_bytes),
       "--link", options.link, "--gpu", "0", "--drain-timeout-ms", "0", "--log-level", "warning"},
      -1, folder / "log");
  return Broker(std::move(process), folder);
}

Broker::~Broker() { process_.Stop(); }

std::string Broker::LogTail() const {
  std::ifstream in(folder_ / "log");
  std::string last;
  for (std::string line; std::getline(in, line);) last = line;
  return last;
}

Memory MemoryOf(pid_t pid) {
  std::ifstream in(Concat("/proc/", pid, "/status"));
  Memory memory;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("VmRSS:")) memory.rss_bytes = std::stoull(line.substr(6)) * kKiB;
    if (line.starts_with("RssAnon:")) memory.anon_bytes = std::stoull(line.substr(8)) * kKiB;
  }
  if (memory.rss_bytes == 0) {
    throw Failure(Code::kNotFound, Concat("cannot read the memory use of process ", pid));
  }
  return memory;
}

}  // namespace gpushm::bench
