#include "sidecar/broker/releases.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/daemon/log.h"
#include "sidecar/broker/child.h"

namespace gpushm::broker {
namespace {

// Words of one child: a descriptor each.
constexpr size_t kWords = 64;
// A context takes 100 to 175 ms on an H200; a child that needs so long hangs with its GPU.
constexpr int64_t kChildMs = 10'000;
constexpr int64_t kFirstRetryMs = 100;
constexpr int64_t kLastRetryMs = 10'000;

}  // namespace

Releases::Releases(EventLoop* loop, Settings settings, Find find)
    : loop_(loop), settings_(std::move(settings)), find_(std::move(find)) {}

Releases::~Releases() {
  if (start_timer_ != 0) loop_->Cancel(start_timer_);
  if (child_ <= 0) return;
  loop_->Unwatch(child_pidfd_.get());
  if (deadline_timer_ != 0) loop_->Cancel(deadline_timer_);
  kill(child_, SIGKILL);  // Not waited for: it may hang with its GPU, and this process ends, too.
}

void Releases::Add(Word word) {
  due_.insert(std::move(word));
  // Not at once: a process that ended may have written several.
  if (child_ > 0) return;
  if (start_timer_ != 0) loop_->Cancel(start_timer_);
  StartAfter(0);
}

void Releases::StartAfter(int64_t wait_ms) {
  start_timer_ = loop_->After(wait_ms, [this] {
    start_timer_ = 0;
    Start();
  });
}

void Releases::Start() {
  std::erase_if(due_, [this](const Word& word) { return find_(word) == nullptr; });
  if (due_.empty()) {
    retry_ms_ = 0;
    return;
  }
  while (!due_.empty() && at_work_.size() < kWords) {
    at_work_.insert(due_.extract(due_.begin()));
  }
  started_ns_ = MonotonicNs();
  if (const auto started = TryStart(); !started) Ended(started);
}

Result<void> Releases::TryStart() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return FailSystem(errno, "pipe2");
  pipe_.Reset(ends[0]);
  const UniqueFd writer(ends[1]);
  std::vector<std::string> arguments = {"--device", std::to_string(settings_.device), "--driver",
                                        settings_.driver_folder};
  std::vector<int> descriptors = {writer.get()};
  for (const Word& word : at_work_) {
    const Memory* const memory = find_(word);
    arguments.insert(arguments.end(), {"--mapped", std::to_string(memory->mapped_bytes)});
    descriptors.push_back(memory->descriptor.get());
  }
  if (settings_.first_die > 0) {
    --settings_.first_die;
    arguments.emplace_back("--test-die");
  }
  const Result<pid_t> child = StartChild(settings_.command, arguments, descriptors);
  if (!child) return std::unexpected(child.error());
  child_ = *child;
  // The child is ours and unreaped, so its number cannot be another process yet.
  child_pidfd_.Reset(static_cast<int>(syscall(SYS_pidfd_open, child_, 0)));
  if (auto r = loop_->Watch(child_pidfd_.get(), EPOLLIN, [this](uint32_t) { OnChildEnded(); });
      !r) {
    kill(child_, SIGKILL);
    [[maybe_unused]] const auto result = Reap();
    return r;
  }
  deadline_timer_ = loop_->After(kChildMs, [this] {
    deadline_timer_ = 0;
    kill(child_, SIGKILL);
  });
  return {};
}

// Waits for its end; what came of it.
Result<void> Releases::Reap() {
  int status = 0;
  waitpid(std::exchange(child_, -1), &status, 0);
  loop_->Unwatch(child_pidfd_.get());
  child_pidfd_.Reset();
  const bool in_time = deadline_timer_ != 0;
  if (in_time) loop_->Cancel(std::exchange(deadline_timer_, 0));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  std::array<char, 1024> text{};
  const ssize_t length = read(pipe_.get(), text.data(), text.size());
  if (length > 0) {
    return Fail(Code::kDriver, std::string(text.data(), static_cast<size_t>(length)));
  }
  if (!in_time) {
    return Fail(Code::kTimeout, Concat("the releaser did not end within ", kChildMs, " ms"),
                "nvidia-smi and the node's kernel log tell whether the GPU hangs");
  }
  return Fail(Code::kPeerDied,
              WIFSIGNALED(status) ? Concat("the releaser was ended by signal ", WTERMSIG(status))
                                  : Concat("the releaser ended with ", WEXITSTATUS(status)),
              "the sidecar's memory limit tells why");
}

void Releases::OnChildEnded() { Ended(Reap()); }

void Releases::Ended(const Result<void>& result) {
  const size_t words = at_work_.size();
  if (result) {
    at_work_.clear();
    retry_ms_ = 0;
    LogInfo("signals-released",
            {{"signals", words}, {"took_ms", (MonotonicNs() - started_ns_) / 1'000'000}});
    if (!due_.empty()) StartAfter(0);
    return;
  }
  due_.merge(at_work_);
  at_work_.clear();
  retry_ms_ = std::clamp(retry_ms_ * 2, kFirstRetryMs, kLastRetryMs);
  LogError("signals-not-released",
           {{"signals", words}, {"reason", result.error().ToString()}, {"retry_ms", retry_ms_}});
  StartAfter(retry_ms_);
}

}  // namespace gpushm::broker
