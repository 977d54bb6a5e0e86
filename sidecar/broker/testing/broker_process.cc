#include "sidecar/broker/testing/broker_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "platform/driver/nvml_api.h"

namespace gpushm::broker::testing {
namespace {

constexpr int kLookEveryMs = 2;

// The folder that contains tests/, bin/ and driver-sim/.
std::string BuildFolder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
}

std::string DriverFolder() { return BuildFolder() + "/driver-sim"; }

const std::string& StateFolder() {
  static const TempFolder* const folder = [] {
    auto* const made = new TempFolder();  // Removed at exit, after all brokers.
    std::filesystem::permissions(made->path(), std::filesystem::perms::all);
    setenv("GPUSHM_SIM_DIR", made->path().c_str(), 1);
    static std::string path = made->path();
    std::atexit([] {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    });
    return made;
  }();
  return folder->path();
}

}  // namespace

namespace simulated {

void SetFaults(const std::string& yaml) {
  const std::string path = StateFolder() + "/faults.yaml";
  if (yaml.empty()) {
    std::filesystem::remove(path);
    return;
  }
  std::ofstream(path + ".new") << yaml << '\n';
  std::filesystem::rename(path + ".new", path);
}

UniqueFd Memory() {
  return UniqueFd(open(StateFolder().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
}

uint64_t UsedBytes() {
  StateFolder();
  const auto api = NvmlApi::Load(DriverFolder());
  nvmlDevice_t device = nullptr;
  nvmlMemory_t memory{};
  if (!api || (*api)->nvmlDeviceGetHandleByIndex_v2(0, &device) != NVML_SUCCESS ||
      (*api)->nvmlDeviceGetMemoryInfo(device, &memory) != NVML_SUCCESS) {
    ADD_FAILURE() << "NVML does not answer";
    return ~uint64_t{0};
  }
  return memory.used;
}

}  // namespace simulated

BrokerSettings TwoContainers() {
  return {.arguments = {"--container", "app", "--container", "other", "--pool", "256Mi"},
          .buffers = "buffers.gpushm.io/weights: 4Mi",
          .uid = 0,
          .descriptors = 0};
}

BrokerProcess::BrokerProcess(const std::string& folder, const BrokerSettings& settings)
    : folder_(folder) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) std::abort();
  log_pipe_.Reset(ends[0]);
  UniqueFd writer(ends[1]);
  const std::string binary = BuildFolder() + "/bin/gpushm-broker";
  std::vector<std::string> words = {binary, "--folder", folder};
  words.insert(words.end(), settings.arguments.begin(), settings.arguments.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::vector<std::string> variables = {
      "GPUSHM_DRIVER=" + DriverFolder(),
      "GPUSHM_SIM_DIR=" +
          (settings.simulated_state.empty() ? StateFolder() : settings.simulated_state)};
  if (!settings.buffers.empty()) variables.push_back("GPUSHM_BUFFERS=" + settings.buffers);
  for (const char* kept : {"PATH", "LD_LIBRARY_PATH", "ASAN_OPTIONS", "TSAN_OPTIONS",
                           "UBSAN_OPTIONS", "GPUSHM_POD_NAMESPACE", "GPUSHM_POD_NAME"}) {
    if (const char* value = std::getenv(kept)) variables.push_back(Concat(kept, '=', value));
  }
  std::vector<char*> environment;
  for (std::string& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);

  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(writer.get(), STDERR_FILENO);
    if (settings.descriptors != 0) {
      const rlimit limit{settings.descriptors, settings.descriptors};
      setrlimit(RLIMIT_NOFILE, &limit);
    }
    if (settings.uid != 0 && (setgid(settings.uid) != 0 || setuid(settings.uid) != 0)) _exit(90);
    execve(binary.c_str(), arguments.data(), environment.data());
    _exit(91);
  }
  writer.Reset();
  pidfd_.Reset(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  reader_ = std::thread([this] { ReadLog(); });
  ready_ = settings.wait && (WaitForLog(" ready ") || WaitForLog("\"ready\"", 0));
}

BrokerProcess::~BrokerProcess() {
  if (!ended_) {
    Signal(SIGCONT);
    Signal(SIGKILL);
    WaitForEnd();
  }
  ReadLogAgain();
  reader_.join();
  for (const char* report : {"ThreadSanitizer", "AddressSanitizer", "runtime error:"}) {
    EXPECT_EQ(log_.find(report), std::string::npos) << "a sanitizer speaks in the broker's log";
  }
  if (::testing::Test::HasFailure()) {
    const std::string all = log();
    std::fprintf(stderr, "---- the broker's log ends with\n%s----\n",
                 all.substr(all.size() > 4000 ? all.size() - 4000 : 0).c_str());
  }
}

std::string BrokerProcess::Socket(const std::string& container) const {
  return folder_ + (container.empty() ? "" : "/" + container) + "/gpushm.sock";
}

void BrokerProcess::Signal(int signal) const {
  if (pid_ > 0) kill(pid_, signal);
}

int BrokerProcess::WaitForEnd(int64_t wait_ms) {
  if (ended_) return result_;
  pollfd poller{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  if (poll(&poller, 1, static_cast<int>(wait_ms)) <= 0) return -1000;
  int status = 0;
  waitpid(pid_, &status, 0);
  ended_ = true;
  ReadLogToNow();
  result_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return result_;
}

// Its last lines may still be in the pipe, which one of its children may hold open. A pipe keeps
// the order.
void BrokerProcess::ReadLogToNow() const {
  static constexpr std::string_view kMark = "---- it has ended\n";
  const UniqueFd writer(
      open(Concat("/proc/self/fd/", log_pipe_.get()).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  // If the pipe is not writable, the log is stalled.
  if (write(writer.get(), kMark.data(), kMark.size()) > 0) WaitForLog(std::string(kMark));
}

void BrokerProcess::ReadLog() {
  std::array<char, 4096> bytes{};
  for (bool more = true; more;) {
    const ssize_t count = read(log_pipe_.get(), bytes.data(), bytes.size());
    more = count > 0;
    Note({bytes.data(), more ? static_cast<size_t>(count) : 0});
  }
}

void BrokerProcess::Note(std::string_view text) {
  std::unique_lock lock(mutex_);
  log_.append(text);
  log_ended_ = text.empty();
  parked_ = stalled_;
  changed_.notify_all();
  changed_.wait(lock, [this] { return !stalled_ || log_ended_; });
}

void BrokerProcess::StallLog() {
  // A separate file description, so that the broker's stays blocking.
  const std::string path = Concat("/proc/self/fd/", log_pipe_.get());
  const UniqueFd writer(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  std::unique_lock lock(mutex_);
  stalled_ = true;
  if (write(writer.get(), "\n", 1) != 1) std::abort();  // Wakes the reader, which then waits.
  changed_.wait(lock, [this] { return parked_ || log_ended_; });
  const std::array<char, 4096> filling{};
  while (write(writer.get(), filling.data(), filling.size()) > 0) {
  }
}

void BrokerProcess::ReadLogAgain() {
  const std::lock_guard lock(mutex_);
  stalled_ = false;
  changed_.notify_all();
}

std::string BrokerProcess::log() const {
  const std::lock_guard lock(mutex_);
  return log_;
}

bool BrokerProcess::WaitForLog(const std::string& text, int64_t wait_ms) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(wait_ms),
                    [&] { return log_ended_ || log_.find(text) != std::string::npos; });
  return log_.find(text) != std::string::npos;
}

size_t BrokerProcess::Descriptors() const {
  std::error_code error;
  size_t count = 0;
  for (std::filesystem::directory_iterator entry(Concat("/proc/", pid_, "/fd"), error), end;
       entry != end; entry.increment(error)) {
    ++count;
  }
  return count;
}

bool Eventually(const std::function<bool()>& holds, int64_t wait_ms) {
  const Deadline deadline = Deadline::AfterMs(wait_ms);
  while (!holds()) {
    if (deadline.Passed()) return false;
    poll(nullptr, 0, kLookEveryMs);
  }
  return true;
}

}  // namespace gpushm::broker::testing
