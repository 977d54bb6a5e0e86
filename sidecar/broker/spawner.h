// The spawner: a child of the broker that starts its other children (child.h says why), and what
// such a child does first.
//
// A request is one datagram on the spawner's descriptor 3: the arguments, each with a zero behind
// it, and one descriptor, the channel, that becomes number 3 of the child. The answer is a
// SpawnAnswer. The child is the broker's own (CLONE_PARENT), which waits for its end.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm::broker {

inline constexpr char kSpawnerName[] = "spawner";
// Of the spawner and of every child: to the broker.
inline constexpr int kChannel = 3;

struct SpawnAnswer {
  int error = 0;  // errno, or 0.
  pid_t pid = -1;
};

// Returns when the broker has ended.
int SpawnerMain(int argc, char** argv);

// ---- for both ends

// As protocol::TrySend, of as many descriptors as the kernel carries (253).
Result<bool> SendDescriptors(int socket, std::string_view bytes, std::span<const int> descriptors);

// ---- for children

struct Order {
  std::string line;  // Without its end.
  std::vector<UniqueFd> descriptors;
};
// Waits for a line of the broker's and the descriptors that come with it. Without a deadline: the
// child ends with the broker.
Result<Order> ReceiveOrder(size_t descriptors);

}  // namespace gpushm::broker
