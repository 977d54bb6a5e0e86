#include "plugin/keeper/kept.h"
#include "platform/base/testing.h"

#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "contract/limits.h"
#include "platform/daemon/process.h"
#include "plugin/keeper/testing/model.h"

namespace gpushm::plugin {
namespace {

using protocol::LinkBuffer;
using protocol::LinkClient;
using protocol::LinkDrop;
using protocol::LinkDropped;
using protocol::LinkGeneration;
using protocol::LinkKind;
using protocol::LinkLease;
using protocol::ToNameField;
using testing::Body;
using ::testing::HasSubstr;
using testing::Line;
using testing::Model;
using ::testing::SizeIs;
using testing::TagOf;

UniqueFd Descriptor() { return UniqueFd(memfd_create("test", MFD_CLOEXEC)); }

LinkClient ClientOf(uint64_t id) {
  LinkClient client{};
  client.client_id = id;
  client.container = ToNameField("app");
  return client;
}
LinkBuffer BufferOf(const std::string& name, uint64_t current = 0) {
  LinkBuffer buffer{};
  buffer.name = ToNameField(name);
  buffer.state = 2;
  buffer.current = current;
  return buffer;
}
LinkGeneration GenerationOf(const std::string& name, uint64_t number) {
  LinkGeneration generation{};
  generation.name = ToNameField(name);
  generation.generation = number;
  generation.size_bytes = 100;
  generation.mapped_bytes = 2 << 20;
  generation.transport = 1;
  generation.pooled = 1;
  return generation;
}
LinkLease LeaseOf(uint64_t id, uint64_t client, uint64_t generation) {
  return {.lease_id = id,
          .client_id = client,
          .generation = generation,
          .since_unix_ns = 1,
          .access = 1,
          .peer_way = 2};
}
LinkDrop DropOf(LinkDropped what, uint64_t id, const std::string& name = "") {
  return {.what = static_cast<uint32_t>(what), .reserved = 0, .id = id, .name = ToNameField(name)};
}

template <typename T>
std::string Said(const Result<T>& result) {
  return result ? "" : result.error().what();
}

// Two clients, two buffers, three generations, three leases.
Kept Pod() {
  Kept kept;
  EXPECT_TRUE(kept.Apply(ClientOf(1), Descriptor()));
  EXPECT_TRUE(kept.Apply(ClientOf(2), Descriptor()));
  EXPECT_TRUE(kept.Apply(BufferOf("a", 11)));
  EXPECT_TRUE(kept.Apply(BufferOf("b", 12)));
  EXPECT_TRUE(kept.Apply(GenerationOf("a", 10), Descriptor()));
  EXPECT_TRUE(kept.Apply(GenerationOf("a", 11), Descriptor()));
  EXPECT_TRUE(kept.Apply(GenerationOf("b", 12), Descriptor()));
  EXPECT_TRUE(kept.Apply(LeaseOf(1, 1, 10)));
  EXPECT_TRUE(kept.Apply(LeaseOf(2, 1, 12)));
  EXPECT_TRUE(kept.Apply(LeaseOf(3, 2, 12)));
  return kept;
}

std::vector<std::string> Dump(const Kept& kept) {
  std::vector<std::string> lines;
  Kept::Cursor cursor;
  Kept::Statement statement;
  while (kept.Next(&cursor, &statement)) {
    lines.push_back(
        Line({statement.bytes.data(), statement.size_bytes}, TagOf(statement.descriptor)));
  }
  return lines;
}

// A sync page is host memory: it has a descriptor, and takes no bytes of the GPU.
TEST(Kept, PagesAreKeptBesideBuffers) {
  Kept kept = Pod();
  const uint64_t offered_before = kept.counts().offered_bytes;
  const uint64_t pooled_before = kept.counts().pooled_bytes;
  const std::vector<std::string> before = Dump(kept);
  LinkGeneration page = GenerationOf("ready", 20);
  page.transport = static_cast<uint32_t>(protocol::Transport::kHost);
  page.pooled = 0;
  page.size_bytes = page.mapped_bytes = 4096;
  ASSERT_TRUE(kept.Apply(BufferOf("ready", 20)));
  EXPECT_FALSE(kept.Apply(page, UniqueFd())) << "without its memfd";
  ASSERT_TRUE(kept.Apply(page, Descriptor()));
  ASSERT_TRUE(kept.Apply(LeaseOf(9, 1, 20)));
  EXPECT_EQ(kept.counts().offered_bytes, offered_before);
  EXPECT_EQ(kept.counts().pooled_bytes, pooled_before);
  EXPECT_EQ(Dump(kept).size(), before.size() + 3);
  protocol::LinkDrop drop{};
  drop.what = static_cast<uint32_t>(protocol::LinkDropped::kBuffer);
  drop.name = protocol::ToNameField("ready");
  kept.Apply(drop);
  EXPECT_EQ(Dump(kept), before);
  EXPECT_EQ(kept.counts().offered_bytes, offered_before);
}

// Applies a statement of a dump.
Result<void> ApplyStatement(const Kept::Statement& statement, Kept* kept) {
  const std::span<const std::byte> bytes(statement.bytes.data(), statement.size_bytes);
  UniqueFd descriptor(statement.descriptor < 0 ? -1
                                               : fcntl(statement.descriptor, F_DUPFD_CLOEXEC, 0));
  switch (statement.kind) {
    case LinkKind::kClient:
      return kept->Apply(*protocol::ParseLink<LinkClient>(bytes), std::move(descriptor));
    case LinkKind::kBuffer:
      return kept->Apply(*protocol::ParseLink<LinkBuffer>(bytes));
    case LinkKind::kGeneration:
      return kept->Apply(*protocol::ParseLink<LinkGeneration>(bytes), std::move(descriptor));
    case LinkKind::kBlock:
      return kept->Apply(*protocol::ParseLink<protocol::LinkBlock>(bytes), std::move(descriptor));
    case LinkKind::kContent:
      return kept->Apply(*protocol::ParseLink<protocol::LinkContent>(bytes));
    case LinkKind::kDescription:
      return kept->Apply(*protocol::ParseLink<protocol::LinkDescription>(bytes),
                         std::move(descriptor));
    case LinkKind::kLease:
      return kept->Apply(*protocol::ParseLink<LinkLease>(bytes));
    default:
      return Fail(Code::kInternal, "no statement of a dump");
  }
}

constexpr uint64_t kMiB = 1 << 20;

LinkGeneration BlocksOf(const std::string& name, uint64_t number, uint32_t blocks) {
  LinkGeneration generation = GenerationOf(name, number);
  generation.size_bytes = generation.mapped_bytes = 2 * kMiB * blocks;
  generation.transport = 4;
  generation.pooled = 0;
  generation.blocks = blocks;
  return generation;
}

// An offer's blocks are kept in order and with their generation, and a broker that does not know
// them gets neither.
TEST(Kept, BlocksGoWithTheirGeneration) {
  using protocol::LinkBlock;
  const auto block = [](uint64_t generation, uint32_t index, uint64_t bytes = 2 * kMiB) {
    return LinkBlock{
        .generation = generation, .mapped_bytes = bytes, .index = index, .reserved = 0};
  };
  Kept kept = Pod();
  const std::vector<std::string> before = Dump(kept);
  const uint64_t bytes_before = kept.bytes();
  EXPECT_THAT(Said(kept.Apply(BlocksOf("a", 30, 3), Descriptor())), HasSubstr("which has none"));
  ASSERT_TRUE(kept.Apply(BlocksOf("a", 30, 3), UniqueFd()));
  EXPECT_FALSE(kept.Apply(block(99, 0), Descriptor())) << "of an unknown generation";
  EXPECT_FALSE(kept.Apply(block(10, 0), Descriptor())) << "of a generation without blocks";
  EXPECT_FALSE(kept.Apply(block(30, 1), Descriptor())) << "out of order";
  EXPECT_FALSE(kept.Apply(block(30, 0), UniqueFd())) << "without its descriptor";
  EXPECT_EQ(kept.TakeRefuse().size(), 4U) << "what was not taken is closed";
  for (uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(kept.Apply(block(30, i), Descriptor()));
  EXPECT_FALSE(kept.Apply(block(30, 3), Descriptor())) << "one too many";
  EXPECT_FALSE(kept.Apply(block(30, 1, kMiB), Descriptor())) << "other memory";
  EXPECT_TRUE(kept.Apply(block(30, 1), UniqueFd())) << "stated again";
  kept.TakeRefuse();
  ASSERT_TRUE(kept.Apply(LeaseOf(50, 1, 30)));
  EXPECT_EQ(Dump(kept).size(), before.size() + 5) << "the generation, its blocks and a lease";
  Kept copy;
  Kept::Cursor cursor;
  Kept::Statement statement;
  while (kept.Next(&cursor, &statement)) {
    ASSERT_TRUE(ApplyStatement(statement, &copy));
  }
  EXPECT_EQ(copy.generations().at(30).blocks.size(), 3U);
  kept.Apply(protocol::LinkDrop{.what = 3, .reserved = 0, .id = 30, .name = {}});
  EXPECT_EQ(kept.TakeRefuse().size(), 3U);
  EXPECT_EQ(Dump(kept), before);
  EXPECT_EQ(kept.bytes(), bytes_before);

  for (uint64_t i = 0; i < limits::kAllBlocks / limits::kBlocks; ++i) {
    ASSERT_TRUE(kept.Apply(BlocksOf("a", 100 + i, limits::kBlocks), UniqueFd()));
  }
  EXPECT_THAT(Said(kept.Apply(BlocksOf("a", 200, 1), UniqueFd())), HasSubstr("2048 blocks"));
}

// A description is kept with its generation, replaced and taken away, and forgotten if a broker
// that states everything no longer states it.
TEST(Kept, DescriptionGoesWithItsGeneration) {
  using protocol::LinkDescription;
  Kept kept = Pod();
  const std::vector<std::string> before = Dump(kept);
  EXPECT_FALSE(kept.Apply(LinkDescription{99, 1}, Descriptor())) << "of an unknown generation";
  EXPECT_FALSE(kept.Apply(LinkDescription{10, 1}, UniqueFd())) << "without its memfd";
  EXPECT_FALSE(kept.Apply(LinkDescription{10, 0}, Descriptor())) << "none, with a memfd";
  EXPECT_EQ(Dump(kept), before);
  EXPECT_EQ(kept.TakeRefuse().size(), 2U) << "what was not taken is closed";
  ASSERT_TRUE(kept.Apply(LinkDescription{10, 5}, Descriptor()));
  ASSERT_TRUE(kept.Apply(GenerationOf("a", 10), UniqueFd())) << "published, with the same";
  EXPECT_EQ(kept.generations().at(10).description_bytes, 5U);
  EXPECT_EQ(Dump(kept).size(), before.size() + 1);
  ASSERT_TRUE(kept.Apply(LinkDescription{10, 6}, Descriptor())) << "another one";
  EXPECT_EQ(kept.TakeRefuse().size(), 1U);
  Kept copy;
  Kept::Cursor cursor;
  Kept::Statement statement;
  while (kept.Next(&cursor, &statement)) {
    ASSERT_TRUE(ApplyStatement(statement, &copy));
  }
  EXPECT_EQ(Dump(copy).size(), before.size() + 1);
  ASSERT_TRUE(copy.Apply(LinkDescription{10, 0}, UniqueFd()));
  EXPECT_EQ(Dump(copy).size(), before.size()) << "taken away";

  kept.BeginAll();
  kept.EndAll();
  EXPECT_TRUE(Dump(kept).empty());
  kept = Pod();
  ASSERT_TRUE(kept.Apply(LinkDescription{10, 5}, Descriptor()));
  kept.BeginAll();
  ASSERT_TRUE(kept.Apply(ClientOf(1), Descriptor()));
  ASSERT_TRUE(kept.Apply(BufferOf("a", 11)));
  ASSERT_TRUE(kept.Apply(GenerationOf("a", 10), UniqueFd()));
  kept.EndAll();
  EXPECT_EQ(kept.generations().at(10).description_bytes, 0U);

  constexpr uint64_t kLargest = limits::kDescriptionBytes;
  for (uint64_t i = 0; i < limits::kAllDescriptionsBytes / kLargest; ++i) {
    ASSERT_TRUE(kept.Apply(GenerationOf("a", 100 + i), Descriptor()));
    ASSERT_TRUE(kept.Apply(LinkDescription{100 + i, kLargest}, Descriptor()));
  }
  EXPECT_THAT(Said(kept.Apply(LinkDescription{10, 1}, Descriptor())),
              HasSubstr("bytes of descriptions"));
  ASSERT_TRUE(kept.Apply(LinkDescription{100, 0}, UniqueFd()));
  EXPECT_TRUE(kept.Apply(LinkDescription{10, 1}, Descriptor()));
}

// Content is kept with its generation and stated after it.
TEST(Kept, ContentGoesWithItsGeneration) {
  Kept kept = Pod();
  const std::vector<std::string> before = Dump(kept);
  EXPECT_FALSE(kept.Apply(protocol::LinkContent{99, 1})) << "of an unknown generation";
  EXPECT_FALSE(kept.Apply(protocol::LinkContent{10, uint64_t{1} << 40})) << "more than its size";
  EXPECT_EQ(Dump(kept), before);
  ASSERT_TRUE(kept.Apply(protocol::LinkContent{10, 5}));
  ASSERT_TRUE(kept.Apply(protocol::LinkContent{10, 0}));
  ASSERT_TRUE(kept.Apply(GenerationOf("a", 10), UniqueFd())) << "published, with the same content";
  EXPECT_EQ(kept.generations().at(10).content_bytes, 0U);
  EXPECT_EQ(Dump(kept).size(), before.size() + 1);
  Kept copy;
  Kept::Cursor cursor;
  Kept::Statement statement;
  while (kept.Next(&cursor, &statement)) {
    const auto taken = ApplyStatement(statement, &copy);
    ASSERT_TRUE(taken) << Said(taken);
  }
  EXPECT_EQ(copy.generations().at(10).content_bytes, 0U);
  kept.Apply(DropOf(LinkDropped::kGeneration, 10));
  EXPECT_EQ(Dump(kept).size(), before.size() - 2) << "its lease is left out too";
}

TEST(Kept, CountsWhatItKeeps) {
  const Kept kept = Pod();
  EXPECT_EQ(kept.counts(), (KeptCounts{.clients = 2,
                                       .buffers = 2,
                                       .generations = 3,
                                       .leases = 3,
                                       .pooled_bytes = 6 << 20,
                                       .offered_bytes = 0}));
}

// An allocator's one allocation is offered in many ranges, but counts once.
TEST(Kept, ACuIpcOfferCountsTheBytesOffered) {
  Kept kept;
  ASSERT_TRUE(kept.Apply(BufferOf("a", 7)));
  protocol::LinkGeneration range = GenerationOf("a", 7);
  range.size_bytes = 4096;
  range.mapped_bytes = uint64_t{64} << 30;
  range.transport = static_cast<uint32_t>(protocol::Transport::kCuIpc);
  range.pooled = 0;
  ASSERT_TRUE(kept.Apply(range, UniqueFd()));
  EXPECT_EQ(kept.counts().offered_bytes, 4096u);
  kept.Apply(protocol::LinkDrop{.what = 3, .reserved = 0, .id = 7, .name = {}});
  EXPECT_EQ(kept.counts().offered_bytes, 0u);
}

TEST(Kept, WhatIsNamedMustBeThere) {
  Kept kept = Pod();
  EXPECT_THAT(Said(kept.Apply(LeaseOf(9, 7, 10))), HasSubstr("lease 9 of the unknown client 7"));
  EXPECT_THAT(Said(kept.Apply(LeaseOf(9, 1, 77))), HasSubstr("unknown generation 77"));
  EXPECT_THAT(Said(kept.Apply(GenerationOf("c", 13), Descriptor())),
              HasSubstr("generation 13 of the unknown buffer \"c\""));
  EXPECT_THAT(Said(kept.Apply(GenerationOf("a", 13), UniqueFd())),
              HasSubstr("generation 13 without its descriptor"));
  EXPECT_THAT(Said(kept.Apply(ClientOf(3), UniqueFd())), HasSubstr("client 3 without its pidfd"));
  LinkGeneration offered = GenerationOf("a", 14);
  offered.transport = 2;
  EXPECT_THAT(Said(kept.Apply(offered, Descriptor())),
              HasSubstr("unexpected descriptor: generation 14 has transport 2"));
  EXPECT_EQ(kept.counts(), Pod().counts()) << "a refused statement changes nothing";
  EXPECT_THAT(kept.TakeRefuse(), SizeIs(2)) << "and its descriptors are returned for closing";
}

TEST(Kept, WhatGoesTakesAlongWhatNeedsIt) {
  Kept kept = Pod();
  kept.Apply(DropOf(LinkDropped::kClient, 1));
  EXPECT_EQ(kept.counts().leases, 1u);
  EXPECT_THAT(kept.TakeRefuse(), SizeIs(1));
  kept.Apply(DropOf(LinkDropped::kGeneration, 12));
  EXPECT_EQ(kept.counts().leases, 0u);
  EXPECT_EQ(kept.counts().pooled_bytes, 4u << 20);
  kept.Apply(DropOf(LinkDropped::kBuffer, 0, "a"));
  EXPECT_EQ(kept.counts().generations, 0u);
  EXPECT_EQ(kept.counts().buffers, 1u);
  EXPECT_EQ(kept.counts().pooled_bytes, 0u);
  kept.Apply(DropOf(LinkDropped::kLease, 99));
  EXPECT_THAT(kept.TakeRefuse(), SizeIs(3)) << "each once";
}

TEST(Kept, ARepeatedStatementReplacesTheFirst) {
  Kept kept = Pod();
  const uint64_t memory = TagOf(kept.generations().at(10).memory.get());
  LinkGeneration again = GenerationOf("a", 10);
  again.publisher_client = 2;
  EXPECT_TRUE(kept.Apply(again, UniqueFd())) << "the descriptor need not be sent again";
  EXPECT_TRUE(kept.Apply(again, Descriptor()));
  EXPECT_EQ(TagOf(kept.generations().at(10).memory.get()), memory) << "the first one is kept";
  EXPECT_EQ(kept.generations().at(10).stated.publisher_client, 2u);
  UniqueFd pidfd = Descriptor();
  const uint64_t tag = TagOf(pidfd.get());
  EXPECT_TRUE(kept.Apply(ClientOf(1), std::move(pidfd)));
  EXPECT_EQ(TagOf(kept.clients().at(1).pidfd.get()), tag) << "for a client, the last one is kept";
  EXPECT_THAT(kept.TakeRefuse(), SizeIs(2));
  EXPECT_TRUE(kept.Apply(LeaseOf(3, 1, 11))) << "a lease may move";
  kept.Apply(DropOf(LinkDropped::kClient, 2));
  EXPECT_EQ(kept.counts().leases, 3u);
  LinkGeneration other = GenerationOf("a", 10);
  other.mapped_bytes = 4 << 20;
  EXPECT_THAT(Said(kept.Apply(other, UniqueFd())), HasSubstr("other memory"));
  EXPECT_THAT(Said(kept.Apply(GenerationOf("b", 10), UniqueFd())), HasSubstr("other memory"));
}

TEST(Kept, WhatIsNotStatedAgainUntilTheEndIsNoMore) {
  Kept kept = Pod();
  kept.BeginAll();
  EXPECT_TRUE(kept.Apply(ClientOf(1), Descriptor()));
  EXPECT_TRUE(kept.Apply(BufferOf("b", 12)));
  EXPECT_TRUE(kept.Apply(GenerationOf("b", 12), Descriptor()));
  EXPECT_TRUE(kept.Apply(LeaseOf(2, 1, 12)));
  EXPECT_EQ(kept.counts(), Pod().counts()) << "a broker that dies here has lost nothing";
  kept.EndAll();
  EXPECT_EQ(kept.counts(), (KeptCounts{.clients = 1,
                                       .buffers = 1,
                                       .generations = 1,
                                       .leases = 1,
                                       .pooled_bytes = 2 << 20,
                                       .offered_bytes = 0}));
}

TEST(Kept, AClientInAnotherPodKeepsItsNames) {
  Kept kept;
  LinkClient foreign = ClientOf(1);
  foreign.pod = ToNameField("servers-1");
  foreign.pod_container = ToNameField("server");
  ASSERT_TRUE(kept.Apply(ClientOf(1), Descriptor()));
  ASSERT_TRUE(kept.Apply(foreign, Descriptor())) << "it says its pod after its first lease";
  Kept::Cursor cursor;
  Kept::Statement statement;
  ASSERT_TRUE(kept.Next(&cursor, &statement));
  const auto stated =
      protocol::ParseLink<LinkClient>({statement.bytes.data(), statement.size_bytes});
  ASSERT_TRUE(stated);
  EXPECT_EQ(stated->pod, foreign.pod);
  EXPECT_EQ(stated->pod_container, foreign.pod_container);
}

TEST(Kept, ADumpNamesOnlyGenerationsThatItHas) {
  Kept kept;
  ASSERT_TRUE(kept.Apply(BufferOf("a", 5)));
  Kept::Cursor cursor;
  Kept::Statement statement;
  ASSERT_TRUE(kept.Next(&cursor, &statement));
  const auto buffer =
      protocol::ParseLink<LinkBuffer>({statement.bytes.data(), statement.size_bytes});
  ASSERT_TRUE(buffer);
  EXPECT_EQ(buffer->current, 0u);
}

TEST(Kept, HasLimits) {
  RaiseDescriptorLimit();
  Kept kept;
  ASSERT_TRUE(kept.Apply(BufferOf("a")));
  for (uint32_t i = 1; i < limits::kLinkBuffers; ++i) {
    ASSERT_TRUE(kept.Apply(BufferOf(Concat("b", i))));
  }
  const auto is_full = [](const Result<void>& result, const char* what) {
    return !result && result.error().code() == Code::kExhausted &&
           result.error().what().find(what) != std::string::npos;
  };
  EXPECT_TRUE(
      is_full(kept.Apply(BufferOf("one-more")), Concat(limits::kLinkBuffers, " buffers").c_str()));
  EXPECT_TRUE(kept.Apply(BufferOf("a"))) << "a known buffer may be stated again";
  LinkGeneration offered = GenerationOf("a", 1);
  offered.transport = 2;  // Without descriptors: the test has not enough of them.
  for (; offered.generation <= limits::kLinkGenerations; ++offered.generation) {
    ASSERT_TRUE(kept.Apply(offered, UniqueFd()));
  }
  EXPECT_TRUE(is_full(kept.Apply(offered, UniqueFd()), "8192 generations"));
  for (uint64_t i = 1; i <= limits::kLinkClients; ++i) {
    ASSERT_TRUE(kept.Apply(ClientOf(i), Descriptor())) << "too few descriptors?";
  }
  EXPECT_TRUE(is_full(kept.Apply(ClientOf(1 << 20), Descriptor()), "1024 clients"));
  for (uint64_t i = 1; i <= limits::kLeases; ++i) ASSERT_TRUE(kept.Apply(LeaseOf(i, 1, 1)));
  EXPECT_TRUE(is_full(kept.Apply(LeaseOf(1 << 20, 1, 1)), "65536 leases"));
  kept.Apply(DropOf(LinkDropped::kLease, 7));
  EXPECT_TRUE(kept.Apply(LeaseOf(1 << 20, 1, 1)));
}

// Goal: whatever is stated in whatever order, it keeps the rules of link.h. Method: random
// statements, including invalid ones, against a model of a few lines. After each, the dumps are
// equal. From time to time the dump is applied elsewhere, in each of its prefixes, and must come
// back.
TEST(Kept, DoesWhatTheModelDoes) {
  SCOPED_TRACE(gpushm::testing::StrideNote());
  for (int round = gpushm::testing::Offset(); round < 60; round += gpushm::testing::Stride()) {
    testing::Random random(static_cast<uint64_t>(round));
    Kept kept;
    Model model;
    int refused = 0;
    for (int step = 0; step < 300; ++step) {
      const Body body = testing::RandomBody(random);
      UniqueFd fd;
      if (testing::TakesDescriptor(body) && testing::Pick(random, 0, 7) > 0) fd = Descriptor();
      const uint64_t tag = TagOf(fd.get());
      const bool valid = model.Apply(body, tag);
      Result<void> applied;
      if (const auto* client = std::get_if<LinkClient>(&body)) {
        applied = kept.Apply(*client, std::move(fd));
      } else if (const auto* generation = std::get_if<LinkGeneration>(&body)) {
        applied = kept.Apply(*generation, std::move(fd));
      } else if (const auto* buffer = std::get_if<LinkBuffer>(&body)) {
        applied = kept.Apply(*buffer);
      } else if (const auto* lease = std::get_if<LinkLease>(&body)) {
        applied = kept.Apply(*lease);
      } else {
        kept.Apply(std::get<LinkDrop>(body));
      }
      ASSERT_EQ(valid, applied.has_value()) << Said(applied) << " round " << round;
      refused += valid ? 0 : 1;
      ASSERT_EQ(Dump(kept), model.Dump()) << "round " << round << " step " << step;
      for (const UniqueFd& gone : kept.TakeRefuse()) EXPECT_TRUE(gone.valid());
      if (step % 50 != 49) continue;
      Kept copy;
      Kept::Cursor cursor;
      Kept::Statement statement;
      while (kept.Next(&cursor, &statement)) {
        const auto taken = ApplyStatement(statement, &copy);
        ASSERT_TRUE(taken) << Said(taken);
      }
      ASSERT_EQ(Dump(copy), Dump(kept));
      ASSERT_EQ(copy.counts(), kept.counts());
    }
    EXPECT_GT(refused, 10);
  }
}

}  // namespace
}  // namespace gpushm::plugin
