#include "sidecar/broker/releases.h"

#include <sys/wait.h>

#include <algorithm>
#include <utility>

#include "platform/base/clock.h"
#include "platform/daemon/log.h"
#include "platform/daemon/process.h"

namespace gpushm::broker {
namespace {

// The most words for one child; each needs a descriptor.
constexpr size_t kWords = 64;
// A context takes 100 to 175 ms on an H200. A child that takes this long hangs with its GPU.
constexpr int64_t kChildMs = 10'000;
constexpr int64_t kFirstRetryMs = 100;
constexpr int64_t kLastRetryMs = 10'000;

}  // namespace

Releases::Releases(EventLoop* loop, Children* children, Settings settings, Find find)
    : loop_(loop), children_(children), settings_(std::move(settings)), find_(std::move(find)) {}

Releases::~Releases() {
  if (start_timer_ != 0) loop_->Cancel(start_timer_);
  if (deadline_timer_ != 0) loop_->Cancel(deadline_timer_);
}

void Releases::Add(Word word) {
  due_.insert(std::move(word));
  // Not at once, because a process that ended may have written several words.
  if (child_) return;
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
  if (!settings_.has_room()) return StartAfter(kFirstRetryMs);
  while (!due_.empty() && at_work_.size() < kWords) {
    at_work_.insert(due_.extract(due_.begin()));
  }
  started_ns_ = MonotonicNs();
  if (const auto started = TryStart(); !started) Ended(started);
}

Result<void> Releases::TryStart() {
  std::vector<std::string> arguments = {"releaser", "--driver", settings_.driver_folder};
  arguments.insert(arguments.end(), settings_.gpu.begin(), settings_.gpu.end());
  std::vector<int> descriptors;
  for (const Word& word : at_work_) {
    const Memory* const memory = find_(word);
    arguments.insert(arguments.end(), {"--mapped", std::to_string(memory->mapped_bytes)});
    descriptors.push_back(memory->descriptor.get());
  }
  if (settings_.first_die > 0) {
    --settings_.first_die;
    arguments.emplace_back("--test-die");
  }
  said_.clear();
  timed_out_ = false;
  auto child =
      children_->Start(arguments, {.on_line = [this](const std::string& line) { said_ = line; },
                                   .on_end = [this](int status) { OnChildEnded(status); }});
  if (!child) return std::unexpected(child.error());
  if (auto sent = (*child)->Send("", descriptors); !sent) return sent;
  child_ = std::move(*child);
  deadline_timer_ = loop_->After(kChildMs, [this] {
    deadline_timer_ = 0;
    timed_out_ = true;
    child_->Kill();
  });
  return {};
}

Result<void> Releases::ResultOf(int status) const {
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  if (!said_.empty()) return Fail(Code::kDriver, said_);
  if (timed_out_) {
    return Fail(Code::kTimeout, Concat("the releaser did not end within ", kChildMs, " ms"),
                "check nvidia-smi and the node's kernel log for a hanging GPU");
  }
  return Fail(Code::kPeerDied, Concat("the releaser ", HowItEnded(status)),
              "check the sidecar's memory limit");
}

void Releases::OnChildEnded(int status) {
  if (deadline_timer_ != 0) loop_->Cancel(std::exchange(deadline_timer_, 0));
  child_.reset();
  Ended(ResultOf(status));
}

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
