// httplib's server for probes and metrics, where a request has bounds: its head may have
// kMaxPlainBytes, and it and its answer may take kMaxReadS. One request for each connection.
//
// Threads: as httplib's.
#pragma once

#include <httplib.h>

#include <cstddef>

namespace gpushm::injector {

inline constexpr size_t kMaxPlainBytes = 16 << 10;

class PlainServer : public httplib::Server {
  bool process_and_close_socket(socket_t socket) override;
};

}  // namespace gpushm::injector
