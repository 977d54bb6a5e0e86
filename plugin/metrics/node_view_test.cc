// Goal: the view shows who holds which bytes, and the sums are right whatever the brokers state.
#include "plugin/metrics/node_view.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "contract/registry/testing/registry.h"

namespace gpushm::plugin::metrics {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::Pair;

constexpr uint64_t kMi = uint64_t{1} << 20;
constexpr char kGpu[] = "GPU-a";

// The builder's input, with its links.
struct Node : NodeFacts {
  std::vector<keeper::LinkView> links;
};

NodeView BuildNodeView(const Node& node) {
  NodeViewBuilder builder(node);
  for (const keeper::LinkView& link : node.links) builder.Add(link);
  return builder.Finish();
}

Node Facts() {
  Node facts;
  facts.devices.push_back({.uuid = kGpu, .parent_uuid = {}, .name = "H200", .total_bytes = 80});
  facts.gpus.push_back({.uuid = kGpu, .units = 3, .tokens = 64});
  facts.unit_bytes = kMi;
  return facts;
}

keeper::LinkView Link(const std::string& name = "m0000") {
  keeper::LinkView link;
  link.name = name;
  link.gpus = {{kGpu, {}}};
  link.pool_bytes = 100 * kMi;
  link.allocated = link.open = link.connected = true;
  return link;
}

void AddBuffer(keeper::LinkView* link, const std::string& name, uint64_t generation,
               uint64_t mapped_bytes, bool pooled = true) {
  link->buffers.push_back({.name = name,
                           .creator = pooled ? "" : "app",
                           .state = registry::BufferState::kReady,
                           .current = generation,
                           .generations = {{.generation = generation,
                                            .size_bytes = mapped_bytes - 1,
                                            .mapped_bytes = mapped_bytes,
                                            .transport = protocol::Transport::kVmm,
                                            .pooled = pooled,
                                            .created_unix_ns = 7}}});
}

void AddLease(keeper::LinkView* link, const std::string& container, uint64_t generation,
              Access access = Access::kRead, bool alive = true) {
  const auto known = std::ranges::find_if(link->clients, [&](const keeper::ClientView& client) {
    return client.container == container && client.alive == alive;
  });
  const auto place = static_cast<uint32_t>(known - link->clients.begin());
  if (known == link->clients.end()) {
    link->clients.push_back({.container = container, .client_id = place + 1, .alive = alive});
  }
  link->leases.push_back({.lease_id = link->leases.size() + 1,
                          .generation = generation,
                          .client = place,
                          .access = access});
}

const PoolContainer& ContainerOf(const PoolView& pool, const std::string& name) {
  for (const PoolContainer& container : pool.containers) {
    if (container.name == name) return container;
  }
  ADD_FAILURE() << "no container " << name;
  return pool.containers.front();
}

TEST(NodeView, BytesThatNobodyAttachedAreTheSidecarS) {
  Node facts = Facts();
  keeper::LinkView link = Link();
  AddBuffer(&link, "weights", 1, 8 * kMi);
  facts.links.push_back(link);
  const NodeView node = BuildNodeView(facts);
  ASSERT_EQ(node.pools.size(), 1U);
  EXPECT_THAT(node.pools[0].containers,
              ElementsAre(::testing::AllOf(Field(&PoolContainer::name, "gpushm"),
                                           Field(&PoolContainer::proportional_bytes, 8 * kMi),
                                           Field(&PoolContainer::mapped_bytes, 0U))));
  EXPECT_EQ(node.gpus[0].buffers_bytes, 8 * kMi);
  EXPECT_EQ(node.gpus[0].bound_bytes, 100 * kMi);
  EXPECT_EQ(node.gpus[0].allocatable_bytes, 3 * kMi);
  EXPECT_EQ(node.gpus[0].saved_bytes, 0U);
}

binding::Binding ClaimOf(const std::string& name, const std::string& pod, claims::Others others) {
  return {.resource = binding::Resource::kMemory,
          .ids = {name},
          .gpus = {kGpu},
          .owner = {{"team", pod}, ""},
          .claim_bytes = 100 * kMi,
          .others = others};
}

// Goal: the bytes of a claim are split over the pods that share it, and nobody is shown under the
// name of a pod that is somebody else. Method: two pods, one of which pretends to be the owner of
// another claim; the owner is not the pod for which the claim was prepared.
TEST(NodeView, TheBytesOfASharedClaimAreSplitOverItsPods) {
  Node facts = Facts();
  facts.bindings = {ClaimOf("m0000", "servers-1", claims::Others::kRead),
                    ClaimOf("m0001", "victim", claims::Others::kNone)};
  keeper::LinkView link = Link();
  link.broker_pod = "weights-2";
  AddBuffer(&link, "weights", 1, 9 * kMi);
  AddLease(&link, "app", 1);
  AddLease(&link, "servers-1/server", 1);
  AddLease(&link, "victim/server", 1);
  facts.links = {link, Link("m0001")};
  const NodeView node = BuildNodeView(facts);
  ASSERT_EQ(node.pools.size(), 2U);
  EXPECT_EQ(node.pools[0].pod.name, "weights-2");
  for (const char* const name : {"app", "servers-1/server", "other-pods"}) {
    const PoolContainer& container = ContainerOf(node.pools[0], name);
    EXPECT_EQ(container.proportional_bytes, 3 * kMi) << name;
    EXPECT_EQ(container.clients, 1U) << name;
  }
  EXPECT_EQ(node.pools[1].pod.name, "victim");
  EXPECT_EQ(node.gpus[0].saved_bytes, 18 * kMi);
}

TEST(NodeView, ABrokerIsNotShownUnderTheNameOfAnotherPod) {
  Node facts = Facts();
  facts.bindings = {ClaimOf("m0000", "first", claims::Others::kRead),
                    ClaimOf("m0001", "victim", claims::Others::kNone),
                    ClaimOf("m0002", "own", claims::Others::kNone)};
  keeper::LinkView liar = Link();
  liar.broker_pod = "victim";
  keeper::LinkView alone = Link("m0002");
  alone.broker_pod = "other";
  facts.links = {liar, Link("m0001"), alone};
  const NodeView node = BuildNodeView(facts);
  ASSERT_EQ(node.pools.size(), 3U);
  EXPECT_EQ(node.pools[0].pod.name, "first");
  EXPECT_EQ(node.pools[2].pod.name, "own") << "the book knows the only pod of a claim";
}

TEST(NodeView, SignalsAreCountedByKindAndState) {
  Node facts = Facts();
  keeper::LinkView link = Link();
  link.syncs = {{sync::Kind::kSignal, keeper::SyncState::kLive},
                {sync::Kind::kSignal, keeper::SyncState::kEnded},
                {sync::Kind::kSignal, keeper::SyncState::kLive},
                {sync::Kind::kRing, keeper::SyncState::kUnused}};
  facts.links.push_back(link);
  const NodeView node = BuildNodeView(facts);
  EXPECT_THAT(node.pools[0].syncs, ElementsAre(Pair(sync::Kind::kSignal, ElementsAre(0, 2, 1)),
                                               Pair(sync::Kind::kRing, ElementsAre(1, 0, 0))));
}

TEST(NodeView, OfferedBytesThatNobodyAttachedAreTheOfferersS) {
  Node facts = Facts();
  keeper::LinkView link = Link();
  AddBuffer(&link, "frames", 1, 8 * kMi, /*pooled=*/false);
  facts.links.push_back(link);
  const NodeView node = BuildNodeView(facts);
  EXPECT_EQ(ContainerOf(node.pools[0], "app").proportional_bytes, 8 * kMi);
}

TEST(NodeView, SharesAreByAttachmentAndLoseNothing) {
  Node facts = Facts();
  keeper::LinkView link = Link();
  AddBuffer(&link, "weights", 1, 10);
  AddLease(&link, "a", 1);
  AddLease(&link, "a", 1);
  AddLease(&link, "b", 1, Access::kReadWrite);
  AddLease(&link, "dead", 1, Access::kRead, /*alive=*/false);
  facts.links.push_back(link);
  const NodeView node = BuildNodeView(facts);
  const PoolView& pool = node.pools[0];
  // 10 * 2/3 = 6, 10 / 3 = 3, and 1 is the remainder of the division.
  EXPECT_EQ(ContainerOf(pool, "a").proportional_bytes, 7U);
  EXPECT_EQ(ContainerOf(pool, "b").proportional_bytes, 3U);
  EXPECT_EQ(ContainerOf(pool, "a").mapped_bytes, 20U);
  EXPECT_EQ(node.gpus[0].saved_bytes, 20U);
  ASSERT_EQ(pool.buffers[0].attachments.size(), 2U);
  EXPECT_EQ(pool.buffers[0].attachments[0].count, 2U);
  EXPECT_EQ(pool.buffers[0].attachments[1].access, "rw");
}

TEST(NodeView, OldGenerationsCountUntilTheirLastHolderGoes) {
  Node facts = Facts();
  keeper::LinkView link = Link();
  AddBuffer(&link, "weights", 2, 10);
  link.buffers[0].generations.insert(link.buffers[0].generations.begin(),
                                     {.generation = 1,
                                      .size_bytes = 4,
                                      .mapped_bytes = 6,
                                      .transport = protocol::Transport::kVmm});
  AddLease(&link, "a", 1);
  facts.links.push_back(link);
  const NodeView node = BuildNodeView(facts);
  const status::Buffer& buffer = node.pools[0].buffers[0];
  EXPECT_EQ(buffer.generations, 2U);
  EXPECT_EQ(buffer.allocated_bytes, 16U);
  EXPECT_EQ(buffer.size_bytes, 9U);
  EXPECT_EQ(ContainerOf(node.pools[0], "a").proportional_bytes, 6U);
  EXPECT_EQ(ContainerOf(node.pools[0], "gpushm").proportional_bytes, 10U);
}

// Goal: the content is what was stated for the current generation, or all of it if nothing was.
TEST(NodeView, ContentIsWhatWasSaid) {
  Node facts = Facts();
  keeper::LinkView link = Link();
  for (const char* name : {"empty", "loading", "said", "unsaid"}) {
    AddBuffer(&link, name, static_cast<uint64_t>(link.buffers.size() + 1), 10);
    link.buffers.back().state = registry::BufferState::kReady;
  }
  link.buffers[0].generations[0].content_bytes = 0;
  link.buffers[1].state = registry::BufferState::kLoading;
  link.buffers[1].loaded_bytes = 3;
  link.buffers[1].generations[0].content_bytes = 8;  // Of the previous load.
  link.buffers[2].loaded_bytes = 4;
  link.buffers[2].generations[0].content_bytes = 5;
  facts.links.push_back(link);
  std::vector<uint64_t> contents;
  const NodeView node = BuildNodeView(facts);
  for (const status::Buffer& buffer : node.pools[0].buffers) {
    contents.push_back(buffer.content_bytes);
  }
  EXPECT_EQ(contents, (std::vector<uint64_t>{0, 3, 5, 9}));
}

// Goal: the reason is what the registry says of the buffer that is shown, while it has no content.
TEST(NodeView, WhyABufferHasNoContentIsWhatItsRegistrySays) {
  auto writer = *registry::RegistryWriter::Create(4);
  const auto say = [&](const char* name, uint32_t code) {
    registry::BufferRecord record = registry::SomeRecord(name, 1);
    record.flags = code << registry::kRecordReasonShift;
    ASSERT_TRUE(writer.Insert(record, Concat("no file ", name, ".bin")));
  };
  say("loading", 2);
  say("failed", 200);
  say("ready", 1);
  Node facts = Facts();
  keeper::LinkView link = Link();
  for (const char* name : {"failed", "loading", "ready", "unsaid"}) {
    AddBuffer(&link, name, static_cast<uint64_t>(link.buffers.size() + 1), 10);
  }
  link.buffers[0].state = registry::BufferState::kFailed;
  link.buffers[1].state = registry::BufferState::kLoading;
  link.buffers[3].state = registry::BufferState::kLoading;
  const auto reasons = [&] {
    std::vector<std::string> all;
    facts.links = {link};
    const NodeView node = BuildNodeView(facts);
    for (const status::Buffer& buffer : node.pools[0].buffers) {
      all.push_back(Concat(buffer.reason_code.value_or("-"), ' ', buffer.reason.value_or("-")));
    }
    return all;
  };
  EXPECT_THAT(reasons(), ElementsAre("- -", "- -", "- -", "- -")) << "no broker runs";
  link.registry = registry::OpenReader(writer);
  EXPECT_THAT(reasons(), ElementsAre("UNKNOWN no file failed.bin", "NOT_FOUND no file loading.bin",
                                     "- -", "- -"));
}

TEST(NodeView, APoolIsNamedAfterItsPodOrItsAllocation) {
  Node facts = Facts();
  facts.links = {Link("m0000"), Link("m0001"), Link("m0002")};
  facts.links[2].allocated = false;  // Its pod has ended.
  facts.bindings.push_back({.resource = binding::Resource::kMemory,
                            .ids = {"m0000", "m0007"},
                            .gpus = {kGpu},
                            .owner = {{"chat", "server-0"}, "gpushm"}});
  facts.bindings.push_back({.resource = binding::Resource::kAttach,
                            .ids = {"m0001"},
                            .gpus = {kGpu},
                            .owner = {{"chat", "other"}, "app"}});
  const NodeView node = BuildNodeView(facts);
  ASSERT_EQ(node.pools.size(), 2U);
  EXPECT_EQ(node.pools[0].pod, (binding::Pod{"chat", "server-0"}));
  EXPECT_EQ(node.pools[1].pod, (binding::Pod{"", "m0001"}));
}

// A pod of two GPUs has a pool on each; what it has once is with the first.
TEST(NodeView, APodOfSeveralGpusHasAPoolOnEach) {
  Node facts = Facts();
  keeper::LinkView link = Link();
  const std::string other = "GPU-aaaaaaaa-0000-0000-0000-000000000009";
  link.gpus = {{kGpu, {.pooled = 10 * kMi}}, {other, {.pooled = 20 * kMi}}};
  AddBuffer(&link, "weights-0", 1, 10 * kMi);
  AddBuffer(&link, "weights-1", 2, 20 * kMi);
  link.buffers[1].generations[0].gpu = 1;
  link.clients = {{.container = "app", .client_id = 1, .alive = true}};
  link.leases = {{.lease_id = 1, .generation = 2, .client = 0, .access = Access::kRead}};
  facts.links = {link};
  const NodeView node = BuildNodeView(facts);
  ASSERT_EQ(node.pools.size(), 2U);
  const PoolView& first = node.pools[0];
  const PoolView& second = node.pools[1];
  EXPECT_EQ(first.gpu, kGpu);
  EXPECT_EQ(second.gpu, other);
  EXPECT_EQ(second.number, 1u);
  EXPECT_EQ(second.pod_gpus, 2u);
  EXPECT_EQ(first.allocated_bytes, 10 * kMi);
  EXPECT_EQ(second.allocated_bytes, 20 * kMi);
  ASSERT_EQ(first.buffers.size(), 1U);
  ASSERT_EQ(second.buffers.size(), 1U);
  EXPECT_EQ(first.buffers[0].name, "weights-0");
  EXPECT_EQ(second.buffers[0].name, "weights-1");
  EXPECT_EQ(node.gpus[0].bound_bytes, 100 * kMi);
  EXPECT_EQ(node.gpus[0].buffers_bytes, 10 * kMi) << "the other is not one of the node's GPUs";
  uint64_t clients = 0;
  uint64_t mapped = 0;
  for (const PoolView& pool : node.pools) {
    for (const PoolContainer& container : pool.containers) {
      clients += container.clients;
      mapped += container.mapped_bytes;
    }
  }
  EXPECT_EQ(clients, 1u) << "a process is counted once";
  EXPECT_EQ(mapped, 20 * kMi);
}

TEST(NodeView, ShowsWhichPodHasAGpuAlone) {
  Node facts = Facts();
  facts.links.push_back(Link("m0000"));
  EXPECT_EQ(BuildNodeView(facts).gpus[0].exclusive_to, "");
  facts.bindings.push_back({.resource = binding::Resource::kMemory,
                            .ids = {"m0000"},
                            .gpus = {kGpu},
                            .owner = {{"chat", "server-0"}, "gpushm"},
                            .exclusive = {"x0000"}});
  const NodeView node = BuildNodeView(facts);
  EXPECT_EQ(node.gpus[0].exclusive_to, "chat/server-0");
  EXPECT_EQ(node.gpus[0].allocatable_bytes, 100 * kMi) << "the rest is nobody's";
}

TEST(NodeView, WhatTheDriverDoesNotSayIsAbsent) {
  Node facts = Facts();
  keeper::LinkView link = Link();
  link.clients.push_back({.container = "a", .client_id = 1});
  link.clients.push_back({.container = "b", .client_id = 2, .alive = false});
  facts.links.push_back(link);
  NodeView node = BuildNodeView(facts);
  EXPECT_FALSE(node.gpus[0].sample);
  EXPECT_EQ(ContainerOf(node.pools[0], "a").clients, 1U);
  EXPECT_FALSE(ContainerOf(node.pools[0], "a").private_bytes);
  EXPECT_EQ(node.pools[0].containers.size(), 2U);
  GpuSample sample;
  sample.private_bytes[{"m0000", "a"}] = 5;
  facts.samples[kGpu] = sample;
  node = BuildNodeView(facts);
  EXPECT_EQ(ContainerOf(node.pools[0], "a").private_bytes, 5U);
}

TEST(NodeView, ShowsMpsAndWhatContainersReserved) {
  Node facts = Facts();
  keeper::LinkView link = Link();
  link.counters.push_back({.container = "a", .values = {}, .private_bytes = 7});
  link.mps = {.ready = true, .clients = 2};
  facts.links.push_back(link);
  GpuSample sample;
  sample.outside_mps = {{"m0000", 3}, {"m0001", 4}};
  NodeView node = BuildNodeView(facts);
  EXPECT_EQ(ContainerOf(node.pools[0], "a").private_limit_bytes, 7U);
  ASSERT_TRUE(node.pools[0].mps);
  EXPECT_EQ(node.pools[0].mps->clients, 2U);
  EXPECT_FALSE(node.pools[0].mps->outside_processes) << "NVML does not show them";
  facts.samples[kGpu] = sample;
  EXPECT_EQ(BuildNodeView(facts).pools[0].mps->outside_processes, 3U);
  facts.links[0].mps.reset();
  EXPECT_FALSE(BuildNodeView(facts).pools[0].mps);
}

TEST(NodeView, KeptBytesAreThoseWithoutABroker) {
  Node facts = Facts();
  keeper::LinkView link = Link();
  AddBuffer(&link, "weights", 1, 10);
  link.open = link.connected = false;
  facts.links.push_back(link);
  EXPECT_EQ(BuildNodeView(facts).gpus[0].kept_bytes, 10U);
  EXPECT_EQ(BuildNodeView(facts).pools[0].broker, "none");
  facts.links[0].open = true;
  EXPECT_EQ(BuildNodeView(facts).gpus[0].kept_bytes, 0U);
  EXPECT_EQ(BuildNodeView(facts).pools[0].broker, "away");
}

TEST(NodeView, APodThatHasEndedIsNoPool) {
  Node facts = Facts();
  keeper::LinkView link = Link();
  AddBuffer(&link, "weights", 1, 10);
  facts.links = {link, Link("m0001")};
  facts.unlisted = {"m0000"};
  EXPECT_EQ(BuildNodeView(facts).pools.size(), 2U) << "its broker lives";
  facts.links[0].open = facts.links[0].connected = false;
  const NodeView ended = BuildNodeView(facts);
  ASSERT_EQ(ended.pools.size(), 1U);
  EXPECT_EQ(ended.pools[0].allocation, "m0001");
  EXPECT_EQ(ended.gpus[0].buffers_bytes, 0U) << "the sum over the pools";
  EXPECT_EQ(ended.gpus[0].kept_bytes, 10U);
  EXPECT_EQ(ended.gpus[0].bound_bytes, 200 * kMi);
  facts.unlisted = {};
  EXPECT_EQ(BuildNodeView(facts).pools.size(), 2U) << "its broker starts again";
}

// Goal: a broker that states all that it may makes few series, and every sum is right. Method: more
// buffers, containers and attachments than are shown, of which few are large.
TEST(NodeView, WhatIsBeyondTheBoundsIsSummedUp) {
  constexpr uint64_t kMany = 4 * kShownBuffers;
  Node facts = Facts();
  keeper::LinkView link = Link();
  uint64_t physical = 0;
  for (uint64_t i = 1; i <= kMany; ++i) {
    AddBuffer(&link, "b" + std::to_string(1000 + i), i, i * kMi);
    physical += i * kMi;
    for (uint64_t c = 0; c < 3 * kShownContainers; ++c) {
      AddLease(&link, "c" + std::to_string(100 + c), i);
    }
  }
  facts.links.push_back(link);
  const NodeView node = BuildNodeView(facts);
  const PoolView& pool = node.pools[0];
  ASSERT_EQ(pool.buffers.size(), kShownBuffers + 1);
  EXPECT_EQ(pool.buffers.back().name, kOthers);
  EXPECT_EQ(pool.buffers[0].name, "b" + std::to_string(1000 + kMany - kShownBuffers + 1))
      << "the largest are shown, by name";
  EXPECT_EQ(pool.containers.size(), kShownContainers + 2) << "the sidecar and the others";
  uint64_t allocated = 0;
  uint64_t attachments = 0;
  size_t rows = 0;
  for (const status::Buffer& buffer : pool.buffers) {
    allocated += buffer.allocated_bytes;
    rows += buffer.attachments.size();
    for (const status::Attachment& view : buffer.attachments) attachments += view.count;
  }
  EXPECT_EQ(allocated, physical);
  EXPECT_EQ(attachments, link.leases.size());
  EXPECT_LE(rows, kShownAttachments);
  uint64_t proportional = 0;
  uint64_t clients = 0;
  for (const PoolContainer& container : pool.containers) {
    proportional += container.proportional_bytes;
    clients += container.clients;
  }
  EXPECT_EQ(proportional, physical);
  EXPECT_EQ(clients, 3 * kShownContainers);
  EXPECT_EQ(node.gpus[0].buffers_bytes, physical);
}

// Goal: invariant 1 for any state. Method: 2,000 random states, with sizes up to 2^47 bytes and
// thousands of attachments, whose products do not fit into 64 bits.
TEST(NodeViewProperty, ProportionalBytesSumUpToPhysicalOnes) {
  std::mt19937_64 random(20261122);
  const auto below = [&](uint64_t bound) { return random() % bound; };
  for (int round = 0; round < 2000; ++round) {
    Node facts = Facts();
    uint64_t physical = 0;
    const uint64_t links = 1 + below(3);
    for (uint64_t l = 0; l < links; ++l) {
      keeper::LinkView link = Link("m000" + std::to_string(l));
      uint64_t generation = 0;
      const uint64_t buffers = below(5);
      for (uint64_t b = 0; b < buffers; ++b) {
        const uint64_t bytes = 1 + below(uint64_t{1} << below(48));
        AddBuffer(&link, "b" + std::to_string(b), ++generation, bytes, below(4) != 0);
        physical += bytes;
        const uint64_t leases = round % 100 == 0 ? below(3000) : below(6);
        for (uint64_t i = 0; i < leases; ++i) {
          AddLease(&link, "c" + std::to_string(below(4)), generation,
                   below(2) == 0 ? Access::kRead : Access::kReadWrite, below(5) != 0);
        }
      }
      facts.links.push_back(std::move(link));
    }
    const NodeView node = BuildNodeView(facts);
    uint64_t proportional = 0;
    uint64_t of_attachments = 0;
    uint64_t mapped = 0;
    for (const PoolView& pool : node.pools) {
      std::set<std::string> names;
      for (const PoolContainer& container : pool.containers) {
        ASSERT_TRUE(names.insert(container.name).second);
        proportional += container.proportional_bytes;
      }
      for (const status::Buffer& buffer : pool.buffers) {
        for (const status::Attachment& view : buffer.attachments) {
          of_attachments += view.proportional_bytes;
          mapped += view.mapped_bytes;
          ASSERT_LE(view.proportional_bytes, view.mapped_bytes);
        }
      }
    }
    ASSERT_EQ(proportional, physical) << "round " << round;
    ASSERT_EQ(node.gpus[0].buffers_bytes, physical);
    ASSERT_LE(of_attachments, physical);
    ASSERT_EQ(node.gpus[0].saved_bytes, mapped - of_attachments);
  }
}

}  // namespace
}  // namespace gpushm::plugin::metrics
