// The address of a server of the plugin: ":9400" (all addresses, IPv4 and IPv6), "127.0.0.1:9401",
// "[::1]:9401". Port 0: any free port.
//
// Threads: pure functions.
#pragma once

#include <optional>
#include <string_view>

namespace gpushm::plugin::config {

struct ListenAddress {
  std::string_view host;  // Part of the parsed text, without brackets; empty: all.
  int port = 0;
};

// Nothing if the text is not an address.
std::optional<ListenAddress> ParseListenAddress(std::string_view text);

// Whether only this machine (this network namespace) can reach it.
bool IsLoopback(const ListenAddress& address);

}  // namespace gpushm::plugin::config
