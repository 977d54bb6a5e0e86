// What the ledger states for a successor (Ledger's members; see ledger.h, invariant 6).
//
// A load by the broker that is in progress is stated as FAILED, because it fails if the broker
// ends. A name that is gone stays stated, without generations of its own, while one of its
// generations is still held. It stays stated indefinitely if the pod declares it, so that the
// successor does not make it again. Its state is then WRITER_DIED. Only that state takes a declared
// buffer away, and a name whose memory was never made is also stated without generations.
#include <algorithm>

#include "sidecar/broker/ledger.h"

namespace gpushm::broker {

using protocol::LinkDropped;

bool Ledger::IsStated(const std::string& name) const {
  const auto buffer = buffers_.find(name);
  return (buffer != buffers_.end() && (buffer->second.current | buffer->second.pending) != 0) ||
         declared_.contains(name) || !holdings_.Name(name).generations.empty();
}

void Ledger::NoteBuffer(const std::string& name) {
  if (!journaling_) return;
  if (IsStated(name)) {
    statements_.push_back({Describe(name)});
  } else {
    NoteDrop(LinkDropped::kBuffer, 0, name);
  }
}

void Ledger::NoteGeneration(uint64_t generation) {
  if (!journaling_) return;
  const Generation& known = generations_.at(generation);
  statements_.push_back({Describe(generation, known), known.memory.descriptor.get()});
  for (uint32_t i = 0; i < known.memory.blocks.size(); ++i) {
    statements_.push_back(BlockStatement(generation, i));
  }
}

Statement Ledger::BlockStatement(uint64_t generation, uint32_t index) const {
  const Block& block = generations_.at(generation).memory.blocks.at(index);
  return {protocol::LinkBlock{.generation = generation,
                              .mapped_bytes = block.mapped_bytes,
                              .index = index,
                              .reserved = 0},
          block.descriptor.get()};
}

void Ledger::NoteContent(uint64_t generation) {
  if (!journaling_) return;
  const Generation& known = generations_.at(generation);
  statements_.push_back({protocol::LinkContent{generation, *known.content_bytes, known.digest}});
}

void Ledger::NoteDescription(uint64_t generation) {
  if (!journaling_) return;
  const Generation& known = generations_.at(generation);
  statements_.push_back(
      {protocol::LinkDescription{generation, known.description_bytes}, known.description.get()});
}

void Ledger::NoteLease(const Lease& lease) {
  if (!journaling_) return;
  statements_.push_back({Describe(lease)});
}

void Ledger::NoteDrop(LinkDropped what, uint64_t id, const std::string& name) {
  if (!journaling_) return;
  protocol::LinkDrop drop{};
  drop.what = static_cast<uint32_t>(what);
  drop.id = id;
  drop.name = protocol::ToNameField(name);
  statements_.push_back({drop});
}

// With the last generation of a name that is gone, the name is dropped too.
void Ledger::NoteReleased(uint64_t generation, const std::string& name) {
  if (!journaling_) return;
  if (IsStated(name)) {
    NoteDrop(LinkDropped::kGeneration, generation);
  } else {
    NoteDrop(LinkDropped::kBuffer, 0, name);
  }
}

protocol::LinkBuffer Ledger::Describe(const std::string& name) const {
  protocol::LinkBuffer stated{};
  stated.name = protocol::ToNameField(name);
  stated.state = static_cast<uint32_t>(BufferState::kWriterDied);
  const auto found = buffers_.find(name);
  const bool there =
      found != buffers_.end() && (found->second.current | found->second.pending) != 0;
  const auto declared = declared_.find(name);
  const Policy* const policy = there                         ? &found->second.policy
                               : declared != declared_.end() ? &declared->second
                                                             : nullptr;
  if (policy != nullptr) {
    stated.creator = protocol::ToNameField(policy->creator);
    stated.declared = policy->declared ? 1 : 0;
    stated.flags = (policy->writers_all ? protocol::kFlagWritersAll : 0) |
                   (policy->one_writer ? protocol::kFlagOneWriter : 0) |
                   (policy->until_unused ? protocol::kFlagUntilUnused : 0);
    stated.on_writer_exit = static_cast<uint32_t>(policy->on_writer_exit);
  }
  if (!there) return stated;
  const Buffer& buffer = found->second;
  stated.state = static_cast<uint32_t>(buffer.state);
  stated.current = buffer.current;
  stated.pending = buffer.pending;
  stated.loaded_bytes = buffer.loaded_bytes;
  return stated;
}

protocol::LinkGeneration Ledger::Describe(uint64_t number, const Generation& generation) {
  const Memory& memory = generation.memory;
  return {.name = protocol::ToNameField(generation.buffer),
          .generation = number,
          .size_bytes = memory.size_bytes,
          .mapped_bytes = memory.mapped_bytes,
          .transport = static_cast<uint32_t>(memory.transport),
          .pooled = static_cast<uint16_t>(memory.pooled ? 1 : 0),
          .gpu = static_cast<uint16_t>(memory.gpu),
          .offerer_pid = memory.offerer_pid,
          .blocks = static_cast<uint32_t>(memory.blocks.size()),
          .publisher_client = generation.publisher_client,
          .offerer_client = generation.offerer_client,
          .created_unix_ns = generation.created_unix_ns,
          .offset = memory.offset,
          .cuipc_handle = memory.cuipc_handle};
}

protocol::LinkLease Ledger::Describe(const Lease& lease) {
  return {.lease_id = lease.id,
          .client_id = lease.client.id,
          .generation = lease.generation,
          .since_unix_ns = lease.since_unix_ns,
          .access = static_cast<uint32_t>(lease.access),
          .peer_way = static_cast<uint32_t>(lease.peer_way)};
}

// Of all names that are stated: buffers with a generation, declared names, and names of
// generations.
const std::string* Ledger::NextName(const std::string& after) const {
  auto buffer = buffers_.upper_bound(after);
  while (buffer != buffers_.end() && (buffer->second.current | buffer->second.pending) == 0) {
    ++buffer;
  }
  const auto declared = declared_.upper_bound(after);
  auto held = holdings_.names().upper_bound(after);
  while (held != holdings_.names().end() && held->second.generations.empty()) ++held;
  const std::string* first = buffer != buffers_.end() ? &buffer->first : nullptr;
  const auto consider = [&first](const std::string& name) {
    if (first == nullptr || name < *first) first = &name;
  };
  if (declared != declared_.end()) consider(declared->first);
  if (held != holdings_.names().end()) consider(held->first);
  return first;
}

std::optional<Statement> Ledger::Next(Cursor* cursor) const {
  using Part = Cursor::Part;
  if (cursor->part == Part::kBuffers) {
    if (const std::string* const name = NextName(cursor->name)) return Statement{Describe(*name)};
    *cursor = {.part = Part::kGenerations};
  }
  if (cursor->part == Part::kGenerations) {
    const auto last = generations_.find(cursor->number);
    if (last == generations_.end()) cursor->due = Cursor::Due::kNothing;
    if (cursor->due == Cursor::Due::kBlocks) {
      if (cursor->block < last->second.memory.blocks.size()) {
        return BlockStatement(last->first, cursor->block);
      }
      cursor->due = Cursor::Due::kContent;
    }
    if (cursor->due == Cursor::Due::kContent) {
      if (last->second.content_bytes) {
        return Statement{
            protocol::LinkContent{last->first, *last->second.content_bytes, last->second.digest}};
      }
      cursor->due = Cursor::Due::kDescription;
    }
    if (cursor->due == Cursor::Due::kDescription && last->second.description) {
      return Statement{protocol::LinkDescription{last->first, last->second.description_bytes},
                       last->second.description.get()};
    }
    const auto next = generations_.upper_bound(cursor->number);
    if (next != generations_.end()) {
      return Statement{Describe(next->first, next->second), next->second.memory.descriptor.get()};
    }
    *cursor = {.part = Part::kLeases};
  }
  if (cursor->part == Part::kLeases) {
    const auto next = leases_.upper_bound(cursor->number);
    if (next != leases_.end()) return Statement{Describe(next->second)};
    *cursor = {.part = Part::kEnd};
  }
  return std::nullopt;
}

void Ledger::Advance(Cursor* cursor, const Statement& stated) {
  if (const auto* b = std::get_if<protocol::LinkBuffer>(&stated.body)) {
    cursor->name = protocol::FromNameField(b->name);
  } else if (const auto* g = std::get_if<protocol::LinkGeneration>(&stated.body)) {
    cursor->number = g->generation;
    cursor->due = Cursor::Due::kBlocks;
    cursor->block = 0;
  } else if (const auto* k = std::get_if<protocol::LinkBlock>(&stated.body)) {
    cursor->block = k->index + 1;
  } else if (std::holds_alternative<protocol::LinkContent>(stated.body)) {
    cursor->due = Cursor::Due::kDescription;
  } else if (std::holds_alternative<protocol::LinkDescription>(stated.body)) {
    cursor->due = Cursor::Due::kNothing;
  } else if (const auto* l = std::get_if<protocol::LinkLease>(&stated.body)) {
    cursor->number = l->lease_id;
  }
}

bool Ledger::IsAhead(const Cursor& cursor, const Statement& statement) const {
  using Part = Cursor::Part;
  const auto is_ahead = [&cursor](const protocol::NameField& name) {
    return cursor.part == Part::kBuffers && protocol::FromNameField(name) > cursor.name;
  };
  if (const auto* b = std::get_if<protocol::LinkBuffer>(&statement.body)) return is_ahead(b->name);
  // Not later than a buffer that names it: if the broker were killed between the two, both would be
  // lost.
  if (const auto* g = std::get_if<protocol::LinkGeneration>(&statement.body)) {
    return is_ahead(g->name);
  }
  // With its generation.
  if (const auto* k = std::get_if<protocol::LinkBlock>(&statement.body)) {
    const auto generation = generations_.find(k->generation);
    return generation == generations_.end() ||
           is_ahead(protocol::ToNameField(generation->second.buffer));
  }
  const auto is_ahead_of = [&cursor](uint64_t generation) {
    return cursor.part == Part::kBuffers ||
           (cursor.part == Part::kGenerations && generation > cursor.number);
  };
  if (const auto* c = std::get_if<protocol::LinkContent>(&statement.body)) {
    return is_ahead_of(c->generation);
  }
  if (const auto* d = std::get_if<protocol::LinkDescription>(&statement.body)) {
    return is_ahead_of(d->generation);
  }
  if (const auto* l = std::get_if<protocol::LinkLease>(&statement.body)) {
    return cursor.part < Part::kLeases ||
           (cursor.part == Part::kLeases && l->lease_id > cursor.number);
  }
  return false;  // Dropping something that was never stated is harmless.
}

}  // namespace gpushm::broker
