#include "tests/integration/waiter_commands.h"

#include <poll.h>

#include <filesystem>
#include <string>

#include "platform/base/clock.h"

namespace gpushm::integration {
namespace {

int64_t EntriesOf(const char* folder) {
  const std::filesystem::directory_iterator entries(folder);
  return std::distance(begin(entries), end(entries));
}

}  // namespace

Answer WaiterCommands::Wait(int64_t timeout_ms) {
  size_t count = 0;
  GPUSHM_INIT(&event_);
  const int status = gpushm_waiter_wait(waiter_, &event_, 1, &count, timeout_ms);
  if (status != GPUSHM_OK) return Told(status);
  if (count == 0) return {GPUSHM_TIMEOUT, 0};
  return {static_cast<int>(event_.status), static_cast<int64_t>(event_.tag)};
}

Answer WaiterCommands::Next(int64_t timeout_ms) {
  const Deadline deadline = Deadline::AfterMs(timeout_ms);
  for (int64_t wakes = 0;; ++wakes) {
    pollfd sleeper{.fd = gpushm_waiter_descriptor(waiter_), .events = POLLIN, .revents = 0};
    if (poll(&sleeper, 1, deadline.RemainingMs()) == 0) return {GPUSHM_TIMEOUT, wakes};
    const Answer answer = Wait(GPUSHM_DONT_WAIT);
    if (answer.status != GPUSHM_TIMEOUT) return answer;
  }
}

Answer WaiterCommands::Do(std::istringstream& in) {
  std::string verb;
  std::string name;
  uint64_t value = 0;
  uint64_t tag = 0;
  in >> verb;
  if (waiter_ == nullptr) {
    if (const int status = gpushm_waiter_open(client_, &waiter_)) return Told(status);
  }
  if (verb == "name") {
    in >> name >> value >> tag;
    return Told(gpushm_waiter_add_name(waiter_, name.c_str(), value, tag));
  }
  if (verb == "signal") {
    in >> value >> tag;
    return Told(gpushm_waiter_add_signal(waiter_, signals_->signal(), value, tag));
  }
  if (verb == "ring") {
    in >> tag;
    return Told(gpushm_waiter_add_ring(waiter_, rings_->ring(), tag));
  }
  if (verb == "remove") {
    in >> tag;
    return Told(gpushm_waiter_remove(waiter_, tag));
  }
  if (verb == "reopen") {
    gpushm_waiter_close(waiter_);
    return Told(gpushm_waiter_open(client_, &waiter_));
  }
  in >> value;
  if (verb == "next") return Next(static_cast<int64_t>(value));
  if (verb == "kind") return {0, event_.kind};
  if (verb == "generation") return {0, static_cast<int64_t>(event_.generation)};
  if (verb == "state") return {0, event_.state};
  if (verb == "threads") return {0, EntriesOf("/proc/self/task")};
  if (verb == "descriptors") return {0, EntriesOf("/proc/self/fd")};
  pollfd now{.fd = gpushm_waiter_descriptor(waiter_), .events = POLLIN, .revents = 0};
  return {0, poll(&now, 1, 0)};  // readable
}

}  // namespace gpushm::integration
