// Memory that applications offer (Ledger's members; see ledger.h). What they say of its size is
// believed by whoever counts a GPU's memory, so it is held to what the GPU has.
#include <utility>

#include "sidecar/broker/ledger.h"

namespace gpushm::broker {

uint64_t Ledger::OfferedBytes(const Memory& memory) {
  if (memory.pooled || memory.is_page()) return 0;
  return protocol::OfferedBytes(memory.transport, memory.size_bytes, memory.mapped_bytes);
}

Result<void> Ledger::HasRoomForOffer(const std::string& name, const Memory& memory) const {
  if (memory.mapped_bytes > limits_.gpu_bytes) {
    return Fail(Code::kInvalidArgument,
                Concat("size: the allocation offered as \"", name, "\" has ", memory.mapped_bytes,
                       " bytes, its GPU has ", limits_.gpu_bytes),
                "give the size that cuMemGetAddressRange says, e.g. 2097152");
  }
  const uint64_t wanted_bytes = OfferedBytes(memory);
  if (wanted_bytes <= limits_.gpu_bytes - offered_bytes_) return {};
  return Fail(Code::kExhausted,
              Concat('"', name, "\" offers ", wanted_bytes, " bytes, other offers of the pod ",
                     offered_bytes_, ", their GPU has ", limits_.gpu_bytes),
              "delete offers that are not used; docs/reference/limits.md");
}

Result<uint64_t> Ledger::Offer(const Client& client, const std::string& name, const Policy& policy,
                               Memory* memory, int64_t now_unix_ns) {
  if (buffers_.contains(name)) {
    return Fail(Code::kAlreadyExists, Concat("there is a buffer \"", name, "\" already"),
                "delete it first, or take another name");
  }
  if (auto room = HasRoomForBuffer(); !room) return std::unexpected(room.error());
  const Result<Policy> allowed = PolicyOfNew(client, name, policy);
  if (!allowed) return std::unexpected(allowed.error());
  memory->pooled = false;
  if (auto room = HasRoomForOffer(name, *memory); !room) return std::unexpected(room.error());
  const uint64_t number = next_generation_++;
  Buffer& buffer = AddBuffer(name, *allowed);
  Generation& generation = generations_[number];
  generation.buffer = name;
  generation.memory = std::move(*memory);
  generation.created_unix_ns = now_unix_ns;
  if (generation.memory.transport == protocol::Transport::kCuIpc) {
    generation.offerer_client = client.id;
  }
  offered_bytes_ += OfferedBytes(generation.memory);
  AddGeneration(number);
  MakeCurrent(name, buffer, number);
  NoteGeneration(number);
  return number;
}

}  // namespace gpushm::broker
