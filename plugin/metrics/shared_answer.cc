#include "plugin/metrics/shared_answer.h"

#include <chrono>
#include <utility>

namespace gpushm::plugin {

Pages::Page Pages::Get(const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  const uint64_t wanted = begun_ + 1;
  while (making_) {
    ++waiting_;
    const auto woken = changed_.wait_for(lock, std::chrono::nanoseconds(deadline.RemainingNs()));
    const Page page = made_ >= wanted ? newest_ : nullptr;
    if (--waiting_ == 0) newest_.reset();
    if (page != nullptr) return page;
    if (woken == std::cv_status::timeout && deadline.Passed()) return nullptr;
  }
  std::erase_if(alive_, [](const auto& page) { return page.expired(); });
  if (alive_.size() >= kMostPages) {
    if (Page newest = alive_.back().lock()) return newest;
  }
  making_ = true;
  const uint64_t number = ++begun_;
  lock.unlock();
  Page page = std::make_shared<const std::string>(make_());
  lock.lock();
  making_ = false;
  made_ = number;
  alive_.push_back(page);
  if (waiting_ > 0) newest_ = page;
  changed_.notify_all();
  return page;
}

}  // namespace gpushm::plugin
