#include "plugin/config/listen_address.h"

#include <charconv>

namespace gpushm::plugin::config {

std::optional<ListenAddress> ParseListenAddress(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  ListenAddress address{.host = text.substr(0, colon)};
  const std::string_view port = text.substr(colon + 1);
  const auto read = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (read.ec != std::errc() || read.ptr != port.data() + port.size() || address.port < 0 ||
      address.port > 65535) {
    return std::nullopt;
  }
  const bool brackets = address.host.starts_with('[') && address.host.ends_with(']');
  if (brackets) address.host = address.host.substr(1, address.host.size() - 2);
  const bool ipv6 = address.host.find(':') != std::string_view::npos;
  if (ipv6 != brackets) return std::nullopt;
  // Must be an address, not a name: the addresses that a name resolves to may change.
  if (address.host.find_first_not_of("0123456789abcdefABCDEF.:") != std::string_view::npos) {
    return std::nullopt;
  }
  return address;
}

bool IsLoopback(const ListenAddress& address) {
  return address.host.starts_with("127.") || address.host == "::1";
}

}  // namespace gpushm::plugin::config
