// One statement to the node's plugin, as ledger and server make it and the link sends it. Bytes and
// rules are those of contract/protocol/link.h.
#pragma once

#include <variant>

#include "contract/protocol/link.h"

namespace gpushm::broker {

struct Statement {
  std::variant<protocol::LinkClient, protocol::LinkBuffer, protocol::LinkGeneration,
               protocol::LinkContent, protocol::LinkLease, protocol::LinkDrop>
      body;
  int descriptor = -1;  // Not owned: the server's pidfd, or the ledger's memory (see there).
  bool page = false;    // Of one: plugins know them from protocol::kLinkPagesVersion on.
};

}  // namespace gpushm::broker
