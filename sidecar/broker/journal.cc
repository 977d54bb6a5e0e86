#include "sidecar/broker/journal.h"

#include <algorithm>
#include <type_traits>
#include <variant>

namespace gpushm::broker {

using protocol::LinkDropped;

namespace {

Statement LeaseStatement(const Lease& lease) {
  return {protocol::LinkLease{.lease_id = lease.id,
                              .client_id = lease.client.id,
                              .generation = lease.generation,
                              .since_unix_ns = lease.since_unix_ns,
                              .access = lease.access,
                              .peer_way = lease.peer_way}};
}

}  // namespace

// ---- as statements

bool Journal::IsStated(const std::string& name) const {
  const auto buffer = ledger_->buffers().find(name);
  return (buffer != ledger_->buffers().end() && buffer->second.has_memory()) ||
         ledger_->declared().contains(name) || !ledger_->generations().OfName(name).empty();
}

Statement Journal::BufferStatement(const std::string& name) const {
  protocol::LinkBuffer stated{};
  stated.name = protocol::ToNameField(name);
  stated.state = BufferState::kWriterDied;
  const auto found = ledger_->buffers().find(name);
  const bool there = found != ledger_->buffers().end() && found->second.has_memory();
  const auto declared = ledger_->declared().find(name);
  const Policy* const policy = there                                   ? &found->second.policy
                               : declared != ledger_->declared().end() ? &declared->second
                                                                       : nullptr;
  if (policy != nullptr) {
    stated.creator = protocol::ToNameField(policy->creator);
    stated.declared = policy->declared ? 1 : 0;
    stated.flags = (policy->writers_all ? protocol::kFlagWritersAll : 0) |
                   (policy->one_writer ? protocol::kFlagOneWriter : 0) |
                   (policy->until_unused ? protocol::kFlagUntilUnused : 0);
    stated.on_writer_exit = policy->on_writer_exit;
  }
  if (!there) return {stated};
  const Buffer& buffer = found->second;
  stated.state = buffer.content.state();
  stated.current = buffer.current;
  stated.pending = buffer.pending;
  stated.loaded_bytes = buffer.content.loaded_bytes();
  return {stated};
}

Statement Journal::GenerationStatement(uint64_t number) const {
  const Generation& generation = ledger_->generations().At(number);
  const Memory& memory = generation.memory;
  return {protocol::LinkGeneration{.name = protocol::ToNameField(generation.buffer),
                                   .generation = number,
                                   .size_bytes = memory.size_bytes,
                                   .mapped_bytes = memory.mapped_bytes,
                                   .transport = memory.transport,
                                   .pooled = static_cast<uint16_t>(memory.pooled ? 1 : 0),
                                   .gpu = static_cast<uint16_t>(memory.gpu),
                                   .offerer_pid = memory.offerer_pid,
                                   .blocks = static_cast<uint32_t>(memory.blocks.size()),
                                   .publisher_client = generation.publisher_client,
                                   .offerer_client = generation.offerer_client,
                                   .created_unix_ns = generation.created_unix_ns,
                                   .offset = memory.offset,
                                   .cuipc_handle = memory.cuipc_handle},
          memory.descriptor.get()};
}

Statement Journal::BlockStatement(uint64_t number, uint32_t index) const {
  const Block& block = ledger_->generations().At(number).memory.blocks.at(index);
  return {
      protocol::LinkBlock{
          .generation = number, .mapped_bytes = block.mapped_bytes, .index = index, .reserved = 0},
      block.descriptor.get()};
}

Statement Journal::ContentStatement(uint64_t number) const {
  const Generation& generation = ledger_->generations().At(number);
  return {protocol::LinkContent{number, *generation.content_bytes, generation.digest}};
}

Statement Journal::DescriptionStatement(uint64_t number) const {
  const Generation& generation = ledger_->generations().At(number);
  return {protocol::LinkDescription{number, generation.description_bytes},
          generation.description.get()};
}

// ---- and back

std::pair<std::string, Buffer> ToBuffer(const protocol::LinkBuffer& stated) {
  Buffer buffer;
  buffer.policy.declared = stated.declared == 1;
  buffer.policy.creator = protocol::FromNameField(stated.creator);
  buffer.policy.writers_all = (stated.flags & protocol::kFlagWritersAll) != 0;
  buffer.policy.one_writer = (stated.flags & protocol::kFlagOneWriter) != 0;
  buffer.policy.until_unused = (stated.flags & protocol::kFlagUntilUnused) != 0;
  buffer.policy.on_writer_exit = OnWriterExit{stated.on_writer_exit};
  buffer.current = stated.current;
  buffer.pending = stated.pending;
  buffer.content = Content(BufferState{stated.state}, stated.loaded_bytes);
  return {std::string(protocol::FromNameField(stated.name)), std::move(buffer)};
}

std::pair<uint64_t, Generation> ToGeneration(const protocol::LinkGeneration& stated,
                                             UniqueFd memory) {
  Generation generation;
  generation.buffer = protocol::FromNameField(stated.name);
  generation.publisher_client = stated.publisher_client;
  generation.offerer_client = stated.offerer_client;
  generation.created_unix_ns = stated.created_unix_ns;
  generation.memory.transport = Transport{stated.transport};
  generation.memory.size_bytes = stated.size_bytes;
  generation.memory.mapped_bytes = stated.mapped_bytes;
  generation.memory.descriptor = std::move(memory);
  generation.memory.blocks.resize(stated.blocks);
  generation.memory.cuipc_handle = stated.cuipc_handle;
  generation.memory.offset = stated.offset;
  generation.memory.offerer_pid = stated.offerer_pid;
  generation.memory.pooled = stated.pooled == 1;
  generation.memory.gpu = stated.gpu;
  return {stated.generation, std::move(generation)};
}

Lease ToLease(const protocol::LinkLease& stated) {
  return {.id = stated.lease_id,
          .client = {.id = stated.client_id, .container = {}},
          .buffer = {},
          .generation = stated.generation,
          .access = Access{stated.access},
          .since_unix_ns = stated.since_unix_ns,
          .peer_way = PeerWay{stated.peer_way}};
}

// ---- changes

void Journal::NoteDrop(LinkDropped what, uint64_t id, const std::string& name) {
  noted_.push_back({protocol::LinkDrop{.what = static_cast<uint32_t>(what),
                                       .reserved = 0,
                                       .id = id,
                                       .name = protocol::ToNameField(name)}});
}

void Journal::NoteBuffer(const std::string& name) {
  if (!IsStated(name)) return NoteDrop(LinkDropped::kBuffer, 0, name);
  noted_.push_back(BufferStatement(name));
}

void Journal::NoteGeneration(uint64_t number) {
  noted_.push_back(GenerationStatement(number));
  const size_t blocks = ledger_->generations().At(number).memory.blocks.size();
  for (uint32_t i = 0; i < blocks; ++i) noted_.push_back(BlockStatement(number, i));
}

void Journal::NoteContent(uint64_t number) { noted_.push_back(ContentStatement(number)); }

void Journal::NoteDescription(uint64_t number) { noted_.push_back(DescriptionStatement(number)); }

void Journal::NoteLease(const Lease& lease) { noted_.push_back(LeaseStatement(lease)); }

void Journal::NoteLeaseEnded(uint64_t id) { NoteDrop(LinkDropped::kLease, id); }

// With the last generation of a name that is gone, the name is dropped too.
void Journal::NoteFreed(uint64_t number, const std::string& name) {
  if (IsStated(name)) {
    NoteDrop(LinkDropped::kGeneration, number);
  } else {
    NoteDrop(LinkDropped::kBuffer, 0, name);
  }
}

std::vector<Statement> Journal::Take() {
  std::vector<Statement> taken = std::exchange(noted_, {});
  if (next_.part != Place::Part::kEnd) {
    std::erase_if(taken, [this](const Statement& statement) { return IsAhead(statement); });
  }
  return taken;
}

// ---- everything

// Of all names that are stated: buffers with a generation, declared names, and names of
// generations.
const std::string* Journal::NextName(const std::string& after) const {
  auto buffer = ledger_->buffers().upper_bound(after);
  while (buffer != ledger_->buffers().end() && !buffer->second.has_memory()) ++buffer;
  const auto declared = ledger_->declared().upper_bound(after);
  const auto held = ledger_->generations().names().upper_bound(after);
  const std::string* first = buffer != ledger_->buffers().end() ? &buffer->first : nullptr;
  const auto consider = [&first](const std::string& name) {
    if (first == nullptr || name < *first) first = &name;
  };
  if (declared != ledger_->declared().end()) consider(declared->first);
  if (held != ledger_->generations().names().end()) consider(held->first);
  return first;
}

std::optional<Statement> Journal::Next() {
  using Part = Place::Part;
  using Due = Place::Due;
  if (next_.part == Part::kBuffers) {
    if (const std::string* const name = NextName(next_.name)) return BufferStatement(*name);
    next_ = {.part = Part::kGenerations};
  }
  if (next_.part == Part::kGenerations) {
    const auto& generations = ledger_->generations().all();
    const auto last = generations.find(next_.number);
    if (last == generations.end()) next_.due = Due::kNothing;
    if (next_.due == Due::kBlocks) {
      if (next_.block < last->second.memory.blocks.size()) {
        return BlockStatement(last->first, next_.block);
      }
      next_.due = Due::kContent;
    }
    if (next_.due == Due::kContent) {
      if (last->second.content_bytes) return ContentStatement(last->first);
      next_.due = Due::kDescription;
    }
    if (next_.due == Due::kDescription && last->second.description) {
      return DescriptionStatement(last->first);
    }
    const auto next = generations.upper_bound(next_.number);
    if (next != generations.end()) return GenerationStatement(next->first);
    next_ = {.part = Part::kLeases};
  }
  if (next_.part == Part::kLeases) {
    const auto next = ledger_->leases().all().upper_bound(next_.number);
    if (next != ledger_->leases().all().end()) return LeaseStatement(next->second);
    next_ = {.part = Part::kEnd};
  }
  return std::nullopt;
}

void Journal::OnStated(const Statement& stated) {
  if (const auto* b = std::get_if<protocol::LinkBuffer>(&stated.body)) {
    next_.name = protocol::FromNameField(b->name);
  } else if (const auto* g = std::get_if<protocol::LinkGeneration>(&stated.body)) {
    next_.number = g->generation;
    next_.due = Place::Due::kBlocks;
    next_.block = 0;
  } else if (const auto* k = std::get_if<protocol::LinkBlock>(&stated.body)) {
    next_.block = k->index + 1;
  } else if (std::holds_alternative<protocol::LinkContent>(stated.body)) {
    next_.due = Place::Due::kDescription;
  } else if (std::holds_alternative<protocol::LinkDescription>(stated.body)) {
    next_.due = Place::Due::kNothing;
  } else if (const auto* l = std::get_if<protocol::LinkLease>(&stated.body)) {
    next_.number = l->lease_id;
  }
}

bool Journal::IsAhead(const Statement& statement) const {
  using Part = Place::Part;
  const auto name_is = [this](std::string_view name) {
    return next_.part == Part::kBuffers && name > next_.name;
  };
  const auto number_is = [this](Part part, uint64_t number) {
    return next_.part < part || (next_.part == part && number > next_.number);
  };
  const auto body_is = [&]<typename Body>(const Body& body) {
    if constexpr (std::is_same_v<Body, protocol::LinkBuffer> ||
                  std::is_same_v<Body, protocol::LinkGeneration>) {
      // A generation not later than a buffer that names it: if the broker were killed between the
      // two, both would be lost.
      return name_is(protocol::FromNameField(body.name));
    } else if constexpr (std::is_same_v<Body, protocol::LinkBlock>) {  // With its generation.
      const auto& generations = ledger_->generations().all();
      const auto found = generations.find(body.generation);
      return found == generations.end() || name_is(found->second.buffer);
    } else if constexpr (std::is_same_v<Body, protocol::LinkLease>) {
      return number_is(Part::kLeases, body.lease_id);
    } else if constexpr (requires { body.generation; }) {  // Its content or description.
      return number_is(Part::kGenerations, body.generation);
    } else {
      return false;  // Dropping something that was never stated is harmless.
    }
  };
  return std::visit(body_is, statement.body);
}

}  // namespace gpushm::broker
