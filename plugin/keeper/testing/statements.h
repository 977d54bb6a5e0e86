// For tests and benchmarks: frequently used statements, and their results.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>

#include "contract/protocol/link.h"
#include "platform/base/unique_fd.h"
#include "platform/daemon/descriptor.h"
#include "plugin/keeper/kept_state.h"
#include "plugin/keeper/testing/fake_broker.h"

namespace gpushm::plugin::keeper::testing {

inline constexpr char kGpu[] = "GPU-aaaaaaaa-0000-0000-0000-000000000001";
inline constexpr char kOtherGpu[] = "MIG-aaaaaaaa-0000-0000-0000-000000000002";
inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGiB = uint64_t{1} << 30;

inline UniqueFd Memfd() { return UniqueFd(memfd_create("memory", MFD_CLOEXEC)); }
// For a keeper in the test's own process: accepts what Memfd() returns as GPU memory.
inline MemoryKind MemfdsAreMemory() { return {.simulated = FileSystemOf(Memfd().get())}; }
// For a plugin that uses the simulated driver's state in `folder`.
inline UniqueFd SimulatedMemory(const std::string& folder) {
  return UniqueFd(open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
}
inline UniqueFd PidfdOf(pid_t pid) {
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

inline protocol::LinkClient ClientOf(uint64_t id, const char* container = "app") {
  protocol::LinkClient client{};
  client.client_id = id;
  client.container = protocol::ToNameField(container);
  return client;
}
inline protocol::LinkBuffer BufferOf(const std::string& name, uint64_t current = 0) {
  protocol::LinkBuffer buffer{};
  buffer.name = protocol::ToNameField(name);
  buffer.state = 2;
  buffer.current = current;
  return buffer;
}
inline protocol::LinkGeneration GenerationOf(const std::string& name, uint64_t number,
                                             uint64_t mapped_bytes = 2 * kMiB) {
  protocol::LinkGeneration generation{};
  generation.name = protocol::ToNameField(name);
  generation.generation = number;
  generation.size_bytes = mapped_bytes;
  generation.mapped_bytes = mapped_bytes;
  generation.transport = 1;
  generation.pooled = 1;
  return generation;
}
inline protocol::LinkLease LeaseOf(uint64_t id, uint64_t client, uint64_t generation) {
  return {.lease_id = id,
          .client_id = client,
          .generation = generation,
          .since_unix_ns = 5,
          .access = 1,
          .peer_way = 0};
}

// One client (this process), one buffer, one generation, one lease.
inline Result<void> SayOneOfEach(FakeBroker* broker, const UniqueFd& memory = Memfd()) {
  const UniqueFd self = PidfdOf(getpid());
  for (const auto& [body, fd] : {std::pair<Body, int>(ClientOf(1), self.get()),
                                 {BufferOf("weights", 7), -1},
                                 {GenerationOf("weights", 7), memory.get()},
                                 {LeaseOf(1, 1, 7), -1}}) {
    if (auto said = broker->Say(body, fd); !said) return said;
  }
  return {};
}
inline constexpr KeptCounts kOneOfEach{.clients = 1,
                                       .buffers = 1,
                                       .generations = 1,
                                       .leases = 1,
                                       .pooled_bytes = 2 * kMiB,
                                       .offered_bytes = 0};

}  // namespace gpushm::plugin::keeper::testing
