#include "sidecar/broker/alarms.h"

#include <utility>

#include "platform/base/alarm.h"
#include "platform/base/clock.h"

namespace gpushm::broker {

Alarms::Alarms() : next_number_(static_cast<uint64_t>(MonotonicNs())) {}

Result<Alarms::Given> Alarms::OfNames(const std::string& container) {
  UniqueFd& alarm = names_[container];
  if (!alarm) {
    Result<UniqueFd> made = MakeAlarm();
    if (!made) return std::unexpected(made.error());
    alarm = std::move(*made);
  }
  return Given{alarm.get(), 0};
}

void Alarms::RingNames() const {
  for (const auto& [container, alarm] : names_) RingAlarm(alarm.get());
}

Result<Alarms::Given> Alarms::Listen(uint64_t generation, signal::News news, uint64_t lease) {
  const auto [item, is_new] = pages_.try_emplace({generation, news});
  PageAlarm& alarm = item->second;
  if (is_new) {
    Result<UniqueFd> made = MakeAlarm();
    if (!made) {
      pages_.erase(item);
      return std::unexpected(made.error());
    }
    alarm.descriptor = std::move(*made);
    alarm.number = ++next_number_;
  }
  alarm.listeners.insert(lease);
  return Given{alarm.descriptor.get(), alarm.number};
}

Result<Alarms::Given> Alarms::Find(uint64_t generation, signal::News news) const {
  const auto known = pages_.find({generation, news});
  if (known == pages_.end()) return Fail(Code::kNotFound, "nobody waits for such news");
  return Given{known->second.descriptor.get(), known->second.number};
}

void Alarms::Ring(uint64_t generation) const {
  for (const signal::News news : {signal::News::kOfFirst, signal::News::kOfOthers}) {
    const auto known = pages_.find({generation, news});
    if (known != pages_.end()) RingAlarm(known->second.descriptor.get());
  }
}

bool Alarms::ForgetLease(uint64_t generation, signal::News news, uint64_t lease) {
  const auto known = pages_.find({generation, news});
  if (known == pages_.end() || known->second.listeners.erase(lease) == 0) return false;
  if (!known->second.listeners.empty()) return false;
  pages_.erase(known);
  return true;
}

}  // namespace gpushm::broker
