#include "plugin/keeper/kept_state.h"
#include "platform/base/testing.h"

#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "contract/limits.h"
#include "platform/daemon/process.h"
#include "plugin/keeper/testing/model.h"
#include "plugin/keeper/testing/statements.h"

namespace gpushm::plugin::keeper {
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
using testing::BufferOf;
using testing::ClientOf;
using testing::GenerationOf;
using ::testing::HasSubstr;
using testing::kMiB;
using testing::LeaseOf;
using testing::Line;
using testing::Memfd;
using testing::Model;
using ::testing::SizeIs;
using testing::TagOf;

LinkDrop DropOf(LinkDropped what, uint64_t id, const std::string& name = "") {
  return {.what = static_cast<uint32_t>(what), .reserved = 0, .id = id, .name = ToNameField(name)};
}

template <typename T>
std::string Said(const Result<T>& result) {
  return result ? "" : result.error().what();
}

// Two clients, two buffers, three generations, three leases.
KeptState Pod() {
  KeptState kept;
  EXPECT_TRUE(kept.Apply(ClientOf(1), Memfd()));
  EXPECT_TRUE(kept.Apply(ClientOf(2), Memfd()));
  EXPECT_TRUE(kept.Apply(BufferOf("a", 11)));
  EXPECT_TRUE(kept.Apply(BufferOf("b", 12)));
  EXPECT_TRUE(kept.Apply(GenerationOf("a", 10), Memfd()));
  EXPECT_TRUE(kept.Apply(GenerationOf("a", 11), Memfd()));
  EXPECT_TRUE(kept.Apply(GenerationOf("b", 12), Memfd()));
  EXPECT_TRUE(kept.Apply(LeaseOf(1, 1, 10)));
  EXPECT_TRUE(kept.Apply(LeaseOf(2, 1, 12)));
  EXPECT_TRUE(kept.Apply(LeaseOf(3, 2, 12)));
  return kept;
}

std::vector<std::string> Dump(const KeptState& kept) {
  std::vector<std::string> lines;
  KeptState::DumpPosition position;
  Datagram statement;
  while (kept.Next(&position, &statement)) {
    lines.push_back(Line(statement.span(), TagOf(statement.descriptor)));
  }
  return lines;
}

// A sync page is host memory: it has a descriptor, and takes no bytes of the GPU.
TEST(KeptState, PagesAreKeptBesideBuffers) {
  KeptState kept = Pod();
  const uint64_t offered_before = kept.counts().offered_bytes;
  const uint64_t pooled_before = kept.counts().pooled_bytes;
  const std::vector<std::string> before = Dump(kept);
  LinkGeneration page = GenerationOf("ready", 20);
  page.transport = static_cast<uint32_t>(protocol::Transport::kHost);
  page.pooled = 0;
  page.size_bytes = page.mapped_bytes = 4096;
  ASSERT_TRUE(kept.Apply(BufferOf("ready", 20)));
  EXPECT_FALSE(kept.Apply(page, UniqueFd())) << "without its memfd";
  ASSERT_TRUE(kept.Apply(page, Memfd()));
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
Result<void> ApplyStatement(const Datagram& statement, KeptState* kept) {
  const std::span<const std::byte> bytes = statement.span();
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

// What a successor makes of the dump.
KeptState CopyOf(const KeptState& kept) {
  KeptState copy;
  KeptState::DumpPosition position;
  Datagram statement;
  while (kept.Next(&position, &statement)) {
    const auto taken = ApplyStatement(statement, &copy);
    EXPECT_TRUE(taken) << Said(taken);
  }
  return copy;
}

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
TEST(KeptState, BlocksGoWithTheirGeneration) {
  using protocol::LinkBlock;
  const auto block = [](uint64_t generation, uint32_t index, uint64_t bytes = 2 * kMiB) {
    return LinkBlock{
        .generation = generation, .mapped_bytes = bytes, .index = index, .reserved = 0};
  };
  KeptState kept = Pod();
  const std::vector<std::string> before = Dump(kept);
  const uint64_t bytes_before = kept.bytes();
  EXPECT_THAT(Said(kept.Apply(BlocksOf("a", 30, 3), Memfd())), HasSubstr("which has none"));
  ASSERT_TRUE(kept.Apply(BlocksOf("a", 30, 3), UniqueFd()));
  EXPECT_FALSE(kept.Apply(block(99, 0), Memfd())) << "of an unknown generation";
  EXPECT_FALSE(kept.Apply(block(10, 0), Memfd())) << "of a generation without blocks";
  EXPECT_FALSE(kept.Apply(block(30, 1), Memfd())) << "out of order";
  EXPECT_FALSE(kept.Apply(block(30, 0), UniqueFd())) << "without its descriptor";
  EXPECT_EQ(kept.TakeDiscarded().size(), 4U) << "what was not taken is closed";
  for (uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(kept.Apply(block(30, i), Memfd()));
  EXPECT_FALSE(kept.Apply(block(30, 3), Memfd())) << "one too many";
  EXPECT_FALSE(kept.Apply(block(30, 1, kMiB), Memfd())) << "other memory";
  EXPECT_TRUE(kept.Apply(block(30, 1), UniqueFd())) << "stated again";
  kept.TakeDiscarded();
  ASSERT_TRUE(kept.Apply(LeaseOf(50, 1, 30)));
  EXPECT_EQ(Dump(kept).size(), before.size() + 5) << "the generation, its blocks and a lease";
  KeptState copy = CopyOf(kept);
  EXPECT_EQ(copy.generations().at(30).blocks.size(), 3U);
  kept.Apply(protocol::LinkDrop{.what = 3, .reserved = 0, .id = 30, .name = {}});
  EXPECT_EQ(kept.TakeDiscarded().size(), 3U);
  EXPECT_EQ(Dump(kept), before);
  EXPECT_EQ(kept.bytes(), bytes_before);

  for (uint64_t i = 0; i < limits::kAllBlocks / limits::kBlocks; ++i) {
    ASSERT_TRUE(kept.Apply(BlocksOf("a", 100 + i, limits::kBlocks), UniqueFd()));
  }
  EXPECT_THAT(Said(kept.Apply(BlocksOf("a", 200, 1), UniqueFd())), HasSubstr("2048 blocks"));
}

// A description is kept with its generation, replaced and taken away, and forgotten if a broker
// that states everything no longer states it.
TEST(KeptState, DescriptionGoesWithItsGeneration) {
  using protocol::LinkDescription;
  KeptState kept = Pod();
  const std::vector<std::string> before = Dump(kept);
  EXPECT_FALSE(kept.Apply(LinkDescription{99, 1}, Memfd())) << "of an unknown generation";
  EXPECT_FALSE(kept.Apply(LinkDescription{10, 1}, UniqueFd())) << "without its memfd";
  EXPECT_FALSE(kept.Apply(LinkDescription{10, 0}, Memfd())) << "none, with a memfd";
  EXPECT_EQ(Dump(kept), before);
  EXPECT_EQ(kept.TakeDiscarded().size(), 2U) << "what was not taken is closed";
  ASSERT_TRUE(kept.Apply(LinkDescription{10, 5}, Memfd()));
  ASSERT_TRUE(kept.Apply(GenerationOf("a", 10), UniqueFd())) << "published, with the same";
  EXPECT_EQ(kept.generations().at(10).description_bytes, 5U);
  EXPECT_EQ(Dump(kept).size(), before.size() + 1);
  ASSERT_TRUE(kept.Apply(LinkDescription{10, 6}, Memfd())) << "another one";
  EXPECT_EQ(kept.TakeDiscarded().size(), 1U);
  KeptState copy = CopyOf(kept);
  EXPECT_EQ(Dump(copy).size(), before.size() + 1);
  ASSERT_TRUE(copy.Apply(LinkDescription{10, 0}, UniqueFd()));
  EXPECT_EQ(Dump(copy).size(), before.size()) << "taken away";

  kept.BeginAll();
  kept.EndAll();
  EXPECT_TRUE(Dump(kept).empty());
  kept = Pod();
  ASSERT_TRUE(kept.Apply(LinkDescription{10, 5}, Memfd()));
  kept.BeginAll();
  ASSERT_TRUE(kept.Apply(ClientOf(1), Memfd()));
  ASSERT_TRUE(kept.Apply(BufferOf("a", 11)));
  ASSERT_TRUE(kept.Apply(GenerationOf("a", 10), UniqueFd()));
  kept.EndAll();
  EXPECT_EQ(kept.generations().at(10).description_bytes, 0U);

  constexpr uint64_t kLargest = limits::kDescriptionBytes;
  for (uint64_t i = 0; i < limits::kAllDescriptionsBytes / kLargest; ++i) {
    ASSERT_TRUE(kept.Apply(GenerationOf("a", 100 + i), Memfd()));
    ASSERT_TRUE(kept.Apply(LinkDescription{100 + i, kLargest}, Memfd()));
  }
  EXPECT_THAT(Said(kept.Apply(LinkDescription{10, 1}, Memfd())),
              HasSubstr("bytes of descriptions"));
  ASSERT_TRUE(kept.Apply(LinkDescription{100, 0}, UniqueFd()));
  EXPECT_TRUE(kept.Apply(LinkDescription{10, 1}, Memfd()));
}

// Content is kept with its generation and stated after it.
TEST(KeptState, ContentGoesWithItsGeneration) {
  KeptState kept = Pod();
  const std::vector<std::string> before = Dump(kept);
  EXPECT_FALSE(kept.Apply(protocol::LinkContent{99, 1})) << "of an unknown generation";
  EXPECT_FALSE(kept.Apply(protocol::LinkContent{10, uint64_t{1} << 40})) << "more than its size";
  EXPECT_EQ(Dump(kept), before);
  ASSERT_TRUE(kept.Apply(protocol::LinkContent{10, 5}));
  const Digest digest{{3, 4}};
  ASSERT_TRUE(kept.Apply(protocol::LinkContent{10, 0, digest}));
  ASSERT_TRUE(kept.Apply(GenerationOf("a", 10), UniqueFd())) << "published, with the same content";
  EXPECT_EQ(kept.generations().at(10).content_bytes, 0U);
  EXPECT_EQ(Dump(kept).size(), before.size() + 1);
  const KeptState copy = CopyOf(kept);
  EXPECT_EQ(copy.generations().at(10).content_bytes, 0U);
  EXPECT_EQ(copy.generations().at(10).digest, digest);
  kept.Apply(DropOf(LinkDropped::kGeneration, 10));
  EXPECT_EQ(Dump(kept).size(), before.size() - 2) << "its lease is left out too";
}

// An allocator's one allocation is offered in many ranges, but counts once.
TEST(KeptState, ACuIpcOfferCountsTheBytesOffered) {
  KeptState kept;
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

TEST(KeptState, WhatIsNamedMustBeThere) {
  KeptState kept = Pod();
  EXPECT_THAT(Said(kept.Apply(LeaseOf(9, 7, 10))), HasSubstr("lease 9 of the unknown client 7"));
  EXPECT_THAT(Said(kept.Apply(LeaseOf(9, 1, 77))), HasSubstr("unknown generation 77"));
  EXPECT_THAT(Said(kept.Apply(GenerationOf("c", 13), Memfd())),
              HasSubstr("generation 13 of the unknown buffer \"c\""));
  EXPECT_THAT(Said(kept.Apply(GenerationOf("a", 13), UniqueFd())),
              HasSubstr("generation 13 without its descriptor"));
  EXPECT_THAT(Said(kept.Apply(ClientOf(3), UniqueFd())), HasSubstr("client 3 without its pidfd"));
  LinkGeneration offered = GenerationOf("a", 14);
  offered.transport = 2;
  EXPECT_THAT(Said(kept.Apply(offered, Memfd())),
              HasSubstr("unexpected descriptor: generation 14 has transport 2"));
  LinkGeneration other = GenerationOf("a", 10);
  other.mapped_bytes = 4 << 20;
  EXPECT_THAT(Said(kept.Apply(other, UniqueFd())), HasSubstr("other memory"));
  EXPECT_THAT(Said(kept.Apply(GenerationOf("b", 10), UniqueFd())), HasSubstr("other memory"));
  EXPECT_EQ(kept.counts(), Pod().counts()) << "a refused statement changes nothing";
  EXPECT_THAT(kept.TakeDiscarded(), SizeIs(2)) << "and its descriptors are returned for closing";
}

TEST(KeptState, WhatIsNotStatedAgainUntilTheEndIsNoMore) {
  KeptState kept = Pod();
  kept.BeginAll();
  EXPECT_TRUE(kept.Apply(ClientOf(1), Memfd()));
  EXPECT_TRUE(kept.Apply(BufferOf("b", 12)));
  EXPECT_TRUE(kept.Apply(GenerationOf("b", 12), Memfd()));
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

TEST(KeptState, HasLimits) {
  RaiseDescriptorLimit();
  KeptState kept;
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
    ASSERT_TRUE(kept.Apply(ClientOf(i), Memfd())) << "too few descriptors?";
  }
  EXPECT_TRUE(is_full(kept.Apply(ClientOf(1 << 20), Memfd()), "1024 clients"));
  for (uint64_t i = 1; i <= limits::kLeases; ++i) ASSERT_TRUE(kept.Apply(LeaseOf(i, 1, 1)));
  EXPECT_TRUE(is_full(kept.Apply(LeaseOf(1 << 20, 1, 1)), "65536 leases"));
  kept.Apply(DropOf(LinkDropped::kLease, 7));
  EXPECT_TRUE(kept.Apply(LeaseOf(1 << 20, 1, 1)));
}

// Goal: whatever is stated in whatever order, it keeps the rules of link.h. Method: random
// statements, including invalid ones, against a model of a few lines. After each, the dumps are
// equal. From time to time the dump is applied elsewhere, in each of its prefixes, and must come
// back.
TEST(KeptState, DoesWhatTheModelDoes) {
  SCOPED_TRACE(gpushm::testing::StrideNote());
  for (int round = gpushm::testing::Offset(); round < 60; round += gpushm::testing::Stride()) {
    testing::Random random(static_cast<uint64_t>(round));
    KeptState kept;
    Model model;
    int refused = 0;
    for (int step = 0; step < 300; ++step) {
      const Body body = testing::RandomBody(random);
      UniqueFd fd;
      if (testing::TakesDescriptor(body) && testing::Pick(random, 0, 7) > 0) fd = Memfd();
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
      for (const UniqueFd& gone : kept.TakeDiscarded()) EXPECT_TRUE(gone.valid());
      if (step % 50 != 49) continue;
      const KeptState copy = CopyOf(kept);
      ASSERT_EQ(Dump(copy), Dump(kept));
      ASSERT_EQ(copy.counts(), kept.counts());
    }
    EXPECT_GT(refused, 10);
  }
}

}  // namespace
}  // namespace gpushm::plugin::keeper
