// The connections of a server: a bounded number of places, and the choice of the connection to
// close when one more is wanted (http_server.h, invariant 3).
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
    int64_t moved_ns = 0;     // When its caller last did something.
    bool in_handler = false;  // It waits for the server, not the server for it.
    bool cut = false;
  };
  using Place = std::list<Connection>::iterator;

  explicit Connections(size_t places) : places_(places) {}

  // Makes room for one more. If no place is free, cuts off the connection that has been idle
  // longest and waits for its place. False if the server is stopping.
  bool MakeRoom();
  // Adds a connection, which waits for a thread. Call MakeRoom first.
  void Add(UniqueFd socket);
  // The next connection that waits for a thread; empty if the server is stopping.
  std::optional<Place> Take();
  // Its socket is closed.
  void Remove(Place place);

  void Moved(Place place);
  void SetInHandler(Place place, bool in_handler);

  // The server is stopping: cuts off every connection.
  void Stop();

 private:
  static void Cut(Connection* connection);

  const size_t places_;
  std::mutex mutex_;  // Guards the members below.
  std::condition_variable changed_;
  std::list<Connection> all_;
  std::list<Place> waiting_;
  bool stopping_ = false;
};

}  // namespace gpushm::http
