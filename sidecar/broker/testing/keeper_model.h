// For tests: what a plugin keeps of a broker's statements, by the rules of link.h only.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sidecar/broker/journal.h"
#include "sidecar/broker/ledger.h"

namespace gpushm::broker::testing {

// Of a published buffer; nullopt if there is none of that name.
inline std::optional<BufferState> StateOf(const Ledger& ledger, const std::string& name) {
  const auto found = ledger.buffers().find(name);
  if (found == ledger.buffers().end() || found->second.current == 0) return std::nullopt;
  return found->second.content.state();
}

class KeeperModel {
 public:
  // Fails for a statement that names something that was not stated, or that ParseLink would refuse.
  void Apply(const Statement& statement) {
    std::visit([this](const auto& body) { Take(body); }, statement.body);
  }
  void AddClient(uint64_t id, const std::string& container) { clients_[id] = container; }
  void DropClient(uint64_t id) {
    clients_.erase(id);
    std::erase_if(leases_, [&](const auto& l) { return l.second.client_id == id; });
  }

  // What a new broker is told. Memory is a descriptor of /dev/null.
  Ledger::Kept Dump() const {
    static const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    Ledger::Kept kept;
    kept.clients = clients_;
    for (const auto& [name, stated] : buffers_) {
      kept.buffers.push_back(ToBuffer(stated));
      Buffer& buffer = kept.buffers.back().second;
      // As in the plugin, see plugin/keeper: a missing number is 0.
      if (!generations_.contains(buffer.current)) buffer.current = 0;
      if (!generations_.contains(buffer.pending)) buffer.pending = 0;
    }
    for (const auto& [number, stated] : generations_) {
      kept.generations.push_back(ToGeneration(stated, UniqueFd()));
      Generation& generation = kept.generations.back().second;
      if (generation.memory.has_descriptor()) generation.memory.descriptor.Reset(dup(null));
      if (const auto blocks = blocks_.find(number); blocks != blocks_.end()) {
        for (const protocol::LinkBlock& block : blocks->second) {
          generation.memory.blocks.at(block.index) = {UniqueFd(dup(null)), block.mapped_bytes};
        }
      }
      if (const auto content = contents_.find(number); content != contents_.end()) {
        generation.content_bytes = content->second.content_bytes;
        generation.digest = content->second.digest;
      }
      if (const auto of = descriptions_.find(number); of != descriptions_.end()) {
        generation.description.Reset(dup(null));
        generation.description_bytes = of->second.size_bytes;
      }
    }
    for (const auto& [id, lease] : leases_) kept.leases.push_back(ToLease(lease));
    return kept;
  }

 private:
  template <typename Other>
  void Take(const Other&) {
    ADD_FAILURE() << "not a statement of the ledger's";
  }
  void Take(const protocol::LinkBuffer& b) {
    EXPECT_TRUE(protocol::ValidateLink(b));
    buffers_[Name(b.name)] = b;
  }
  void Take(const protocol::LinkGeneration& g) {
    const auto valid = protocol::ValidateLink(g);
    EXPECT_TRUE(valid) << valid.error().ToString();
    EXPECT_TRUE(buffers_.contains(Name(g.name))) << "a generation before its buffer";
    generations_[g.generation] = g;
  }
  void Take(const protocol::LinkBlock& b) {
    EXPECT_TRUE(protocol::ValidateLink(b));
    ASSERT_TRUE(generations_.contains(b.generation)) << "a block before its generation";
    EXPECT_LT(b.index, generations_.at(b.generation).blocks);
    std::vector<protocol::LinkBlock>& blocks = blocks_[b.generation];
    EXPECT_LE(b.index, blocks.size()) << "a block before the one before it";
    if (b.index == blocks.size()) blocks.push_back(b);
  }
  void Take(const protocol::LinkContent& c) {
    EXPECT_TRUE(protocol::ValidateLink(c));
    EXPECT_TRUE(generations_.contains(c.generation)) << "content before its generation";
    contents_[c.generation] = c;
  }
  void Take(const protocol::LinkDescription& d) {
    EXPECT_TRUE(protocol::ValidateLink(d));
    EXPECT_TRUE(generations_.contains(d.generation)) << "a description before its generation";
    if (d.size_bytes == 0) {
      descriptions_.erase(d.generation);
    } else {
      descriptions_[d.generation] = d;
    }
  }
  void Take(const protocol::LinkLease& l) {
    EXPECT_TRUE(protocol::ValidateLink(l));
    EXPECT_TRUE(clients_.contains(l.client_id)) << "a lease before its client";
    EXPECT_TRUE(generations_.contains(l.generation)) << "a lease before its generation";
    leases_[l.lease_id] = l;
  }
  void Take(const protocol::LinkDrop& d) {
    EXPECT_TRUE(protocol::ValidateLink(d));
    switch (static_cast<protocol::LinkDropped>(d.what)) {
      case protocol::LinkDropped::kClient:
        return DropClient(d.id);
      case protocol::LinkDropped::kBuffer: {
        const std::string name = Name(d.name);
        buffers_.erase(name);
        for (auto g = generations_.begin(); g != generations_.end();) {
          g = Name(g->second.name) == name ? DropGeneration(g) : std::next(g);
        }
        return;
      }
      case protocol::LinkDropped::kGeneration:
        if (const auto g = generations_.find(d.id); g != generations_.end()) DropGeneration(g);
        return;
      case protocol::LinkDropped::kLease:
        leases_.erase(d.id);
        return;
    }
  }
  using GenerationAt = std::map<uint64_t, protocol::LinkGeneration>::iterator;
  GenerationAt DropGeneration(GenerationAt g) {
    std::erase_if(leases_, [&](const auto& l) { return l.second.generation == g->first; });
    contents_.erase(g->first);
    blocks_.erase(g->first);
    descriptions_.erase(g->first);
    return generations_.erase(g);
  }
  static std::string Name(const protocol::NameField& field) {
    return std::string(protocol::FromNameField(field));
  }

  std::map<uint64_t, std::string> clients_;
  std::map<std::string, protocol::LinkBuffer> buffers_;
  std::map<uint64_t, protocol::LinkGeneration> generations_;
  std::map<uint64_t, std::vector<protocol::LinkBlock>> blocks_;
  std::map<uint64_t, protocol::LinkContent> contents_;
  std::map<uint64_t, protocol::LinkDescription> descriptions_;
  std::map<uint64_t, protocol::LinkLease> leases_;
};

// All that a ledger states, as one line each. States are separate: see LinesDiffer.
struct Line {
  std::string text;
  uint32_t state = 0;  // For a buffer.
};
inline Line LineOf(const protocol::LinkBuffer& b) {
  return {Concat("buffer ", b.name.data(), " of ", b.creator.data(), " declared ", b.declared,
                 " flags ", b.flags, " exit ", b.on_writer_exit, " current ", b.current,
                 " pending ", b.pending, " loaded ", b.loaded_bytes),
          b.state};
}
inline Line LineOf(const protocol::LinkGeneration& g) {
  uint64_t tag = 0;
  std::memcpy(&tag, g.cuipc_handle.data(), sizeof tag);
  return {Concat("generation ", g.generation, " of ", g.name.data(), " bytes ", g.size_bytes, '/',
                 g.mapped_bytes, " transport ", g.transport, " pooled ", g.pooled, " publisher ",
                 g.publisher_client, " offerer ", g.offerer_client, " pid ", g.offerer_pid, " at ",
                 g.created_unix_ns, " tag ", tag, " blocks ", g.blocks, " from ", g.offset)};
}
inline Line LineOf(const protocol::LinkBlock& k) {
  return {Concat("block ", k.index, " of ", k.generation, ' ', k.mapped_bytes)};
}
inline Line LineOf(const protocol::LinkContent& c) {
  return {Concat("content of ", c.generation, ' ', c.content_bytes, ' ', c.digest.ToString())};
}
inline Line LineOf(const protocol::LinkDescription& d) {
  return {Concat("description of ", d.generation, ' ', d.size_bytes)};
}
inline Line LineOf(const protocol::LinkLease& l) {
  return {Concat("lease ", l.lease_id, " of ", l.client_id, " on ", l.generation, " access ",
                 l.access, " since ", l.since_unix_ns)};
}
inline std::vector<Line> LinesOf(const Ledger& ledger) {
  std::vector<Line> lines;
  Journal all(&ledger);
  all.BeginAll();
  while (const auto next = all.Next()) {
    all.OnStated(*next);
    std::visit(
        [&lines]<typename Body>(const Body& body) {
          if constexpr (requires { LineOf(body); }) lines.push_back(LineOf(body));
        },
        next->body);
  }
  return lines;
}

// Returns an empty text if both are equal. If `careful`, a buffer of `a` may be FAILED although
// that of `b` is not.
inline std::string LinesDiffer(const Ledger& a, const Ledger& b, bool careful = false) {
  const std::vector<Line> left = LinesOf(a);
  const std::vector<Line> right = LinesOf(b);
  const auto failed = BufferState::kFailed;
  for (size_t i = 0; i < std::max(left.size(), right.size()); ++i) {
    const Line x = i < left.size() ? left[i] : Line{"nothing"};
    const Line y = i < right.size() ? right[i] : Line{"nothing"};
    const bool same_state = x.state == y.state || (careful && x.state == failed);
    if (x.text != y.text || !same_state) {
      return Concat('"', x.text, "\" state ", x.state, ", not \"", y.text, "\" state ", y.state);
    }
  }
  return "";
}

}  // namespace gpushm::broker::testing
