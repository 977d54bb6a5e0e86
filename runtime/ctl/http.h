// GET of one document from a server on this machine: the only HTTP that `top --node` needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "platform/base/clock.h"
#include "platform/base/status.h"

namespace gpushm::ctl {

// A node of 16 GPUs with 500 buffers each sends 3 MiB.
inline constexpr size_t kMaxAnswerBytes = size_t{64} << 20;

// Where the plugin serves its status document, unless its configuration says otherwise.
inline constexpr std::string_view kNodeAddress = "127.0.0.1:9401";

struct Address {
  std::string host;  // Numeric, IPv4 or IPv6.
  std::string port;
};
// "127.0.0.1:9401", "[::1]:9401", "localhost:9401". Names are not resolved: a resolver has no
// deadline, and the plugin listens on loopback.
Result<Address> ParseAddress(std::string_view text);

// The body of a 200 answer; otherwise UNAVAILABLE, TIMEOUT or CORRUPT with what came instead. It
// uses HTTP/1.0, so that the body ends with the connection.
Result<std::string> HttpGet(const Address& address, std::string_view path,
                            const Deadline& deadline);

// Extracts the body from everything that a server sent. Pure.
Result<std::string> BodyOf(std::string_view answer);

}  // namespace gpushm::ctl
