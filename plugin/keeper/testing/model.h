// For tests: the rules of link.h a second time, as simply as possible; random statements; and the
// dump as a list of lines for comparison.
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "contract/protocol/link.h"

namespace gpushm::plugin::keeper::testing {

using Body = std::variant<protocol::LinkClient, protocol::LinkBuffer, protocol::LinkGeneration,
                          protocol::LinkLease, protocol::LinkDrop>;

inline protocol::LinkKind KindOf(const Body& body) {
  constexpr protocol::LinkKind kKinds[] = {protocol::LinkKind::kClient, protocol::LinkKind::kBuffer,
                                           protocol::LinkKind::kGeneration,
                                           protocol::LinkKind::kLease, protocol::LinkKind::kDrop};
  return kKinds[body.index()];
}

// Represents a descriptor in a line of the dump: its inode, 0 for none.
inline uint64_t TagOf(int fd) {
  struct stat file{};
  return fd >= 0 && fstat(fd, &file) == 0 ? file.st_ino : 0;
}

template <typename Bytes>
std::string Line(protocol::LinkKind kind, const Bytes& body, uint64_t tag) {
  std::string line = Concat(static_cast<int>(kind), " ", tag, " ");
  line.append(reinterpret_cast<const char*>(&body), sizeof body);
  return line;
}
// The line for a message as sent.
inline std::string Line(std::span<const std::byte> message, uint64_t tag) {
  protocol::LinkHeader header{};
  std::memcpy(&header, message.data(), sizeof header);
  std::string line = Concat(header.kind, " ", tag, " ");
  line.append(reinterpret_cast<const char*>(message.data()) + sizeof header,
              message.size() - sizeof header);
  return line;
}

class Model {
 public:
  // False: it breaks a rule, and nothing changed. `tag`: of its descriptor; 0: none.
  bool Apply(const Body& body, uint64_t tag) {
    return std::visit([&](const auto& stated) { return Take(stated, tag); }, body);
  }

  std::vector<std::string> Dump() const {
    std::vector<std::string> lines;
    for (const auto& [id, client] : clients_) {
      lines.push_back(Line(protocol::LinkKind::kClient, client.first, client.second));
    }
    for (const auto& [name, buffer] : buffers_) {
      protocol::LinkBuffer stated = buffer;
      for (uint64_t* const number : {&stated.current, &stated.pending}) {
        const auto found = generations_.find(*number);
        if (found == generations_.end() || NameOf(found->second.first) != name) *number = 0;
      }
      lines.push_back(Line(protocol::LinkKind::kBuffer, stated, 0));
    }
    for (const auto& [number, generation] : generations_) {
      lines.push_back(Line(protocol::LinkKind::kGeneration, generation.first, generation.second));
    }
    for (const auto& [id, lease] : leases_) {
      lines.push_back(Line(protocol::LinkKind::kLease, lease, 0));
    }
    return lines;
  }

 private:
  template <typename T>
  static std::string NameOf(const T& stated) {
    return std::string(protocol::FromNameField(stated.name));
  }

  bool Take(const protocol::LinkClient& client, uint64_t tag) {
    if (tag == 0) return false;
    clients_.insert_or_assign(client.client_id, std::pair(client, tag));
    return true;
  }
  bool Take(const protocol::LinkBuffer& buffer, uint64_t) {
    buffers_.insert_or_assign(NameOf(buffer), buffer);
    return true;
  }
  bool Take(const protocol::LinkGeneration& generation, uint64_t tag) {
    const bool vmm = generation.transport == 1;
    const auto known = generations_.find(generation.generation);
    if (!buffers_.contains(NameOf(generation)) || (!vmm && tag != 0)) return false;
    if (known == generations_.end()) {
      if (vmm && tag == 0) return false;
      generations_.emplace(generation.generation, std::pair(generation, tag));
      return true;
    }
    const protocol::LinkGeneration& before = known->second.first;
    if (before.name != generation.name || before.transport != generation.transport ||
        before.pooled != generation.pooled || before.size_bytes != generation.size_bytes ||
        before.mapped_bytes != generation.mapped_bytes) {
      return false;
    }
    known->second.first = generation;
    return true;
  }
  bool Take(const protocol::LinkLease& lease, uint64_t) {
    if (!clients_.contains(lease.client_id) || !generations_.contains(lease.generation)) {
      return false;
    }
    leases_.insert_or_assign(lease.lease_id, lease);
    return true;
  }
  bool Take(const protocol::LinkDrop& drop, uint64_t) {
    switch (static_cast<protocol::LinkDropped>(drop.what)) {
      case protocol::LinkDropped::kClient:
        clients_.erase(drop.id);
        break;
      case protocol::LinkDropped::kBuffer:
        buffers_.erase(NameOf(drop));
        break;
      case protocol::LinkDropped::kGeneration:
        generations_.erase(drop.id);
        break;
      case protocol::LinkDropped::kLease:
        leases_.erase(drop.id);
        break;
    }
    std::erase_if(generations_,
                  [&](const auto& item) { return !buffers_.contains(NameOf(item.second.first)); });
    std::erase_if(leases_, [&](const auto& item) {
      return !clients_.contains(item.second.client_id) ||
             !generations_.contains(item.second.generation);
    });
    return true;
  }

  std::map<uint64_t, std::pair<protocol::LinkClient, uint64_t>> clients_;
  std::map<std::string, protocol::LinkBuffer> buffers_;
  std::map<uint64_t, std::pair<protocol::LinkGeneration, uint64_t>> generations_;
  std::map<uint64_t, protocol::LinkLease> leases_;
};

using Random = std::mt19937_64;
inline uint64_t Pick(Random& random, uint64_t from, uint64_t to) {
  return std::uniform_int_distribution<uint64_t>(from, to)(random);
}

inline protocol::NameField RandomName(Random& random) {
  return protocol::ToNameField(std::string("buffer-") +
                               static_cast<char>('a' + Pick(random, 0, 4)));
}

inline protocol::LinkClient RandomClient(Random& random) {
  protocol::LinkClient client{};
  client.client_id = Pick(random, 1, 6);
  for (uint8_t& byte : client.token) byte = static_cast<uint8_t>(Pick(random, 0, 255));
  client.container = protocol::ToNameField(Pick(random, 0, 1) == 0 ? "app" : "other");
  if (Pick(random, 0, 1) == 0) {
    client.pod = protocol::ToNameField("servers-1");
    client.pod_container = protocol::ToNameField("server");
  }
  return client;
}

inline protocol::LinkBuffer RandomBuffer(Random& random) {
  protocol::LinkBuffer buffer{};
  buffer.name = RandomName(random);
  buffer.creator = protocol::ToNameField(Pick(random, 0, 1) == 0 ? "" : "app");
  buffer.declared = static_cast<uint32_t>(Pick(random, 0, 1));
  buffer.on_writer_exit = static_cast<uint32_t>(Pick(random, 0, 2));
  buffer.state = static_cast<uint32_t>(Pick(random, 1, 4));
  buffer.current = Pick(random, 0, 12);
  buffer.pending = Pick(random, 0, 12);
  if (buffer.pending == buffer.current) buffer.pending = 0;
  buffer.loaded_bytes = Pick(random, 0, 1 << 20);
  return buffer;
}

// Small numbers, so that statements often concern the same objects. The memory of a generation
// depends only on its number, as in reality.
inline protocol::LinkGeneration RandomGeneration(Random& random, uint64_t number) {
  protocol::LinkGeneration generation{};
  generation.name = RandomName(random);
  generation.generation = number;
  generation.size_bytes = 1000 * generation.generation;
  generation.mapped_bytes = uint64_t{2} << 20;
  const bool cuipc = generation.generation % 4 == 0;
  generation.transport = cuipc ? 2 : 1;
  generation.pooled = generation.generation % 3 != 0 && !cuipc ? 1 : 0;
  if (cuipc) {
    generation.offerer_pid = 1;
    generation.offerer_client = Pick(random, 1, 6);
  }
  generation.publisher_client = Pick(random, 0, 6);
  generation.created_unix_ns = static_cast<int64_t>(Pick(random, 0, 1'000'000));
  return generation;
}

inline protocol::LinkLease RandomLease(Random& random) {
  return {.lease_id = Pick(random, 1, 20),
          .client_id = Pick(random, 1, 6),
          .generation = Pick(random, 1, 12),
          .since_unix_ns = static_cast<int64_t>(Pick(random, 0, 1'000'000)),
          .access = static_cast<uint32_t>(Pick(random, 1, 2)),
          .peer_way = static_cast<uint32_t>(Pick(random, 0, 3))};
}

inline protocol::LinkDrop RandomDrop(Random& random) {
  protocol::LinkDrop drop{};
  drop.what = static_cast<uint32_t>(Pick(random, 1, 4));
  if (drop.what == 2) {
    drop.name = RandomName(random);
  } else {
    drop.id = Pick(random, 1, drop.what == 4 ? 20 : 12);
  }
  return drop;
}

// More creations than drops, so that there are objects for invalid statements.
inline Body RandomBody(Random& random) {
  switch (Pick(random, 0, 12)) {
    case 0:
    case 1:
      return RandomClient(random);
    case 2:
    case 3:
      return RandomBuffer(random);
    case 4:
    case 5:
    case 6:
      return RandomGeneration(random, Pick(random, 1, 12));
    case 7:
    case 8:
    case 9:
    case 10:
    case 11:
      return RandomLease(random);
    default:
      return RandomDrop(random);
  }
}

// Whether a valid kind comes with a descriptor the first time.
inline bool TakesDescriptor(const Body& body) {
  if (const auto* generation = std::get_if<protocol::LinkGeneration>(&body)) {
    return generation->transport == 1;
  }
  return std::holds_alternative<protocol::LinkClient>(body);
}

}  // namespace gpushm::plugin::keeper::testing
