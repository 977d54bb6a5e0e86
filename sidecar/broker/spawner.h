// The spawner is a child of the broker that starts its other children (child.h explains why). This
// header also has what such a child does first.
//
// A request is one datagram on the spawner's descriptor 3. It holds the arguments, each followed by
// a zero byte, and one descriptor, the channel, which becomes descriptor 3 of the child. The answer
// is a SpawnAnswer. The child belongs to the broker (CLONE_PARENT), which waits for its end.
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
// The channel to the broker, in the spawner and in every child.
inline constexpr int kChannel = 3;

struct SpawnAnswer {
  int error = 0;  // errno, or 0.
  pid_t pid = -1;
};

// Returns when the broker has ended.
int SpawnerMain(int argc, char** argv);

// ---- for both ends

// Like protocol::TrySend, but for as many descriptors as the kernel carries (253).
Result<bool> SendDescriptors(int socket, std::string_view bytes, std::span<const int> descriptors);

// ---- for children

struct Order {
  std::string line;  // Without the line end.
  std::vector<UniqueFd> descriptors;
};
// Waits for a line from the broker and the descriptors that come with it. There is no deadline,
// because the child ends with the broker.
Result<Order> ReceiveOrder(size_t descriptors);

}  // namespace gpushm::broker
