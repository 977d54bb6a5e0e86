// The connections of a server: a bounded number of places, and who has to go when one more is
// wanted (http_server.h, invariant 3).
//
// The class is thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>

#include "platform/base/unique_fd.h"

namespace gpushm::http {

class Connections {
 public:
  struct Connection {
    UniqueFd socket;
    int64_t moved_ns = 0;     // When its caller did something last.
    bool in_handler = false;  // It waits for us, not we for it.
    bool cut = false;
  };
  using Place = std::list<Connection>::iterator;

  explicit Connections(size_t places) : places_(places) {}

  // For one more. Where there is no place, the connection that has stood still for longest is cut
  // off, and its place is waited for. False: the server ends.
  bool MakeRoom();
  // A connection, which waits for a thread. After MakeRoom.
  void Add(UniqueFd socket);
  // The next one that waits for a thread; nothing: the server ends.
  std::optional<Place> Take();
  // Its socket is closed.
  void Remove(Place place);

  void Moved(Place place);
  void SetInHandler(Place place, bool in_handler);

  // The server ends: everybody is cut off.
  void Stop();

 private:
  static void Cut(Connection* connection);

  const size_t places_;
  std::mutex mutex_;  // Guards what follows.
  std::condition_variable changed_;
  std::list<Connection> all_;
  std::list<Place> waiting_;
  bool stopping_ = false;
};

}  // namespace gpushm::http
