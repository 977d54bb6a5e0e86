// Where a server of the plugin listens: ":9400" (all addresses, IPv4 and IPv6), "127.0.0.1:9401",
// "[::1]:9401". Port 0: any free one.
//
// Threads: pure functions.
#pragma once

#include <optional>
#include <string_view>

namespace gpushm::plugin {

struct ListenAddress {
  std::string_view host;  // Of the text that was parsed, without brackets; empty: all.
  int port = 0;
};

// Nothing: it is none.
std::optional<ListenAddress> ParseListenAddress(std::string_view text);

// Whether it is reached from this machine (this network namespace) alone.
bool IsLoopback(const ListenAddress& address);

}  // namespace gpushm::plugin
