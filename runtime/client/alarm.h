// The alarm of one sync page, or of the names that this process sees, as a client knows it: a
// descriptor that the broker makes, and that wakes those who wait in an event loop
// (docs/design/waiting.md). It is requested when it is needed, and again after the broker's
// restart.
//
// Threads: any thread may call any function.
#pragma once

#include <cstdint>
#include <mutex>

#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "runtime/client/attachment.h"

namespace gpushm::client {

class Client;

class Alarm {
 public:
  // A descriptor of the caller's own, of that connection of the client. `page` has no lease for the
  // alarm of the names. kNotFound: the lease has ended.
  Result<UniqueFd> Hear(Client* client, const Lease& page, uint64_t connection,
                        const Deadline& deadline);
  // Wakes those who wait. `number` is what the page says.
  void Ring(Client* client, const Lease& page, uint64_t number);

 private:
  // As the broker gave it.
  struct Given {
    UniqueFd descriptor;
    uint64_t number = 0;
    uint64_t connection = 0;
  };
  // kNotFound: the lease has ended.
  static Result<Given> AskBroker(Client* client, const Lease& page, const Deadline& deadline);

  std::mutex mutex_;
  Given given_;                // Under mutex_.
  uint64_t asked_number_ = 0;  // Under mutex_: the last one for which Ring asked the broker,
  int64_t asked_ns_ = 0;       // and when.
};

struct Connection {
  UniqueFd socket;  // A copy, which hangs up when the connection ends.
  uint64_t number = 0;
};
// Connects if the broker has gone, with one attempt.
Result<Connection> Connect(Client* client, const Deadline& deadline);

}  // namespace gpushm::client
