// The alarms with which clients wait in event loops: one for the names that a container sees, and
// one for each sync page and kind of news for which somebody waits (docs/design/waiting.md).
//
// Threads: the loop's.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "contract/sync/page.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm::broker {

class Alarms {
 public:
  struct Given {
    int descriptor = -1;  // Owned by this object.
    uint64_t number = 0;
  };

  Alarms();

  // The alarm of a container's names.
  Result<Given> OfNames(const std::string& container);
  void RingNames() const;

  // The alarm of a page: `lease` listens until ForgetLease. Makes it for the first listener.
  Result<Given> Listen(uint64_t generation, signal::News news, uint64_t lease);
  // For a participant that rings. kNotFound: nobody listens.
  Result<Given> Find(uint64_t generation, signal::News news) const;
  void Ring(uint64_t generation) const;
  // True: that was the last listener, and the alarm is gone.
  bool ForgetLease(uint64_t generation, signal::News news, uint64_t lease);

 private:
  struct PageAlarm {
    UniqueFd descriptor;
    uint64_t number = 0;
    std::set<uint64_t> listeners;
  };

  // Never that of an alarm of an earlier broker: participants compare it with the one that they
  // have.
  uint64_t next_number_;
  std::map<std::string, UniqueFd> names_;                         // By container.
  std::map<std::pair<uint64_t, signal::News>, PageAlarm> pages_;  // By generation and news.
};

}  // namespace gpushm::broker
