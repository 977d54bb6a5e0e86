// One statement to the node's plugin, in the form in which the broker makes it and the link sends
// it. contract/protocol/link.h defines its bytes and rules.
#pragma once

#include <variant>

#include "contract/protocol/link.h"

namespace gpushm::broker {

struct Statement {
  std::variant<protocol::LinkRegistry, protocol::LinkCounters, protocol::LinkBrokerPod,
               protocol::LinkClient, protocol::LinkBuffer, protocol::LinkGeneration,
               protocol::LinkBlock, protocol::LinkContent, protocol::LinkDescription,
               protocol::LinkLease, protocol::LinkDrop, protocol::LinkEnd>
      body;
  int descriptor = -1;  // Not owned: for example, the server's pidfd or the ledger's memory.
};

}  // namespace gpushm::broker
