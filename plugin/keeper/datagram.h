// One message of a link, encoded, with the descriptor that it carries; and the error of a broker
// that breaks the rules of contract/protocol/link.h.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "contract/protocol/link.h"
#include "platform/base/status.h"

namespace gpushm::plugin::keeper {

struct Datagram {
  protocol::LinkKind kind{};
  protocol::Buffer bytes;
  size_t size_bytes = 0;
  int descriptor = -1;  // Not owned.

  template <typename Body>
  void Encode(protocol::LinkKind its_kind, const Body& body, int its_descriptor = -1) {
    kind = its_kind;
    size_bytes = protocol::EncodeLink(its_kind, body, &bytes);
    descriptor = its_descriptor;
  }
  std::span<const std::byte> span() const { return {bytes.data(), size_bytes}; }
  std::span<const int> descriptors() const { return {&descriptor, descriptor >= 0 ? 1U : 0U}; }
};

inline std::unexpected<Status> BrokeProtocol(std::string_view rule) {
  return Fail(Code::kCorrupt, Concat("the broker broke the protocol: ", rule));
}

}  // namespace gpushm::plugin::keeper
