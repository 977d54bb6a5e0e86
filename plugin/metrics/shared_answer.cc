#include "plugin/metrics/shared_answer.h"

#include <chrono>
#include <utility>

namespace gpushm::plugin::metrics {

SharedAnswer::Text SharedAnswer::Get(const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  const uint64_t wanted = begun_ + 1;
  while (making_) {
    ++waiting_;
    const auto woken = changed_.wait_for(lock, std::chrono::nanoseconds(deadline.RemainingNs()));
    const Text text = made_ >= wanted ? newest_ : nullptr;
    if (--waiting_ == 0) newest_.reset();
    if (text != nullptr) return text;
    if (woken == std::cv_status::timeout && deadline.Passed()) return nullptr;
  }
  std::erase_if(alive_, [](const auto& text) { return text.expired(); });
  if (alive_.size() >= kMostAnswers) {
    if (Text newest = alive_.back().lock()) return newest;
  }
  making_ = true;
  const uint64_t number = ++begun_;
  lock.unlock();
  Text text = std::make_shared<const std::string>(make_());
  lock.lock();
  making_ = false;
  made_ = number;
  alive_.push_back(text);
  if (waiting_ > 0) newest_ = text;
  changed_.notify_all();
  return text;
}

}  // namespace gpushm::plugin::metrics
