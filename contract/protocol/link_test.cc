#include "contract/protocol/link.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <set>
#include <string>

#include "contract/limits.h"
#include "contract/protocol/testing/link.h"
#include "contract/registry/record.h"

namespace gpushm::protocol {
namespace {

using testing::ForEachLinkMessage;
using ::testing::HasSubstr;
using testing::ValidLink;

std::span<const std::byte> Bytes(const Buffer& buffer, size_t size_bytes) {
  return {buffer.data(), size_bytes};
}

TEST(Link, EveryMessageComesBackAsItWas) {
  std::set<LinkKind> kinds;
  ForEachLinkMessage([&]<typename Body>(LinkKind kind) {
    kinds.insert(kind);
    const Body sent = ValidLink<Body>();
    Buffer buffer;
    const size_t size = EncodeLink(kind, sent, &buffer);
    const auto header = ParseLinkHeader(Bytes(buffer, size));
    ASSERT_TRUE(header) << header.error().ToString();
    EXPECT_EQ(header->kind, static_cast<uint16_t>(kind));
    EXPECT_EQ(header->version, IsGreeting(kind) ? 1 : kLinkMaxVersion);
    const auto received = ParseLink<Body>(Bytes(buffer, size));
    ASSERT_TRUE(received) << static_cast<int>(kind) << ": " << received.error().ToString();
    EXPECT_EQ(std::memcmp(&*received, &sent, sizeof sent), 0);
  });
  EXPECT_EQ(kinds.size(), size_t{kMaxLinkKind});
}

TEST(Link, OfAnotherSizeIsCorrupt) {
  ForEachLinkMessage([&]<typename Body>(LinkKind kind) {
    Buffer buffer{};
    const size_t size = EncodeLink(kind, ValidLink<Body>(), &buffer);
    for (const size_t wrong : {sizeof(LinkHeader), size - 1, size + 1}) {
      const auto parsed = ParseLink<Body>(Bytes(buffer, wrong));
      ASSERT_FALSE(parsed);
      EXPECT_EQ(parsed.error().code(), Code::kCorrupt);
    }
  });
}

TEST(Link, HeadersAreChecked) {
  const auto broken = [](const std::function<void(LinkHeader*)>& change) -> int {
    Buffer buffer;
    const size_t size = EncodeLink(LinkKind::kEnd, LinkEnd{}, &buffer);
    LinkHeader header;
    std::memcpy(&header, buffer.data(), sizeof header);
    change(&header);
    std::memcpy(buffer.data(), &header, sizeof header);
    const auto parsed = ParseLinkHeader(Bytes(buffer, size));
    return parsed ? 0 : static_cast<int>(parsed.error().code());
  };
  const int corrupt = static_cast<int>(Code::kCorrupt);
  EXPECT_EQ(broken([](LinkHeader*) {}), 0);
  EXPECT_EQ(broken([](LinkHeader* h) { h->magic ^= 1; }), corrupt);
  const int incompatible = static_cast<int>(Code::kIncompatible);
  for (const int version : {0, 1, kLinkMinVersion - 1, kLinkMaxVersion + 1}) {
    EXPECT_EQ(broken([&](LinkHeader* h) { h->version = static_cast<uint16_t>(version); }),
              incompatible)
        << version;
  }
  EXPECT_EQ(broken([](LinkHeader* h) { h->kind = 1; }), incompatible) << "a hello has version 1";
  EXPECT_EQ(broken([](LinkHeader* h) { ++h->size_bytes; }), corrupt);
  EXPECT_EQ(broken([](LinkHeader* h) { h->kind = 0; }), corrupt);
  EXPECT_EQ(broken([](LinkHeader* h) { h->kind = kMaxLinkKind + 1; }), corrupt);
  EXPECT_EQ(broken([](LinkHeader* h) { h->reserved = 1; }), corrupt);
  for (size_t size = 0; size < sizeof(LinkHeader); ++size) {
    EXPECT_FALSE(ParseLinkHeader(Bytes(Buffer{}, size)));
  }
}

// One broken rule: a change to a valid body, and the error of ValidateLink.
template <typename Body>
void ExpectBroken(const char* rule, const std::function<void(Body*)>& change) {
  Body body = ValidLink<Body>();
  ASSERT_TRUE(ValidateLink(body)) << rule;
  change(&body);
  const auto valid = ValidateLink(body);
  ASSERT_FALSE(valid) << rule;
  EXPECT_EQ(valid.error().code(), Code::kCorrupt);
  EXPECT_THAT(valid.error().what(), HasSubstr(rule));
}
template <typename Body>
void ExpectFine(const std::function<void(Body*)>& change) {
  Body body = ValidLink<Body>();
  change(&body);
  const auto valid = ValidateLink(body);
  EXPECT_TRUE(valid) << valid.error().ToString();
}

// The rules for every name.
template <typename Body>
void ExpectNameRules(const char* rule, NameField Body::* field) {
  for (const char* bad : {"-a", "a-", "A", "a_b", "a.b", "a b", "\xc3\xa4", "../x"}) {
    ExpectBroken<Body>(rule, [&](Body* body) { body->*field = ToNameField(bad); });
  }
  ExpectBroken<Body>(rule, [&](Body* body) { (body->*field).fill('a'); });     // Not terminated.
  ExpectBroken<Body>(rule, [&](Body* body) { (body->*field).back() = 'x'; });  // Not padded.
}

TEST(Link, GreetingRules) {
  using B = LinkHello;
  ExpectBroken<B>("min_version 3 is above max_version", [](B* b) { b->min_version = 3; });
  ExpectBroken<B>("must be 0 or 1", [](B* b) { b->want_kept = 2; });
  ExpectBroken<B>("not NUL-terminated", [](B* b) { b->program.fill('x'); });
  ExpectFine<B>([](B* b) { b->max_version = 9; });
  using W = LinkWelcome;
  ExpectBroken<W>("version is 0", [](W* b) { b->version = 0; });
  ExpectBroken<W>("number of other GPUs", [](W* b) { b->other_gpus = limits::kPodGpus; });
  ExpectBroken<W>("must be 0 or 1", [](W* b) { b->device_lost = 2; });
  ExpectNameRules<W>("allocation", &W::allocation);
  ExpectBroken<W>("allocation", [](W* b) { b->allocation = {}; });
  ExpectBroken<W>("pool", [](W* b) { b->pool_bytes = limits::kBufferBytes + 1; });
  ExpectBroken<W>("number of clients", [](W* b) { b->clients = limits::kLinkClients + 1; });
  ExpectBroken<W>("number of buffers", [](W* b) { b->buffers = limits::kLinkBuffers + 1; });
  ExpectBroken<W>("number of generations",
                  [](W* b) { b->generations = limits::kLinkGenerations + 1; });
  ExpectBroken<W>("number of leases", [](W* b) { b->leases = limits::kLeases + 1; });
  ExpectBroken<LinkEnd>("reserved", [](LinkEnd* b) { b->reserved = 1; });
}

// Goal: broker and plugin go on only in a version that they speak, whoever asks: the broker at its
// start, or a plugin that hands over to the next one.
TEST(Link, OnlyAVersionThatThisProgramSpeaksIsAgreedOn) {
  LinkWelcome welcome{};
  for (int version = 0; version <= kLinkMaxVersion + 2; ++version) {
    welcome.version = static_cast<uint16_t>(version);
    const auto agreed = Agree(welcome);
    ASSERT_EQ(agreed.has_value(), version >= kLinkMinVersion && version <= kLinkMaxVersion);
    if (!agreed) {
      EXPECT_EQ(agreed.error().code(), Code::kIncompatible);
    }
  }
}

TEST(Link, GpuRules) {
  using G = LinkGpu;
  ExpectBroken<G>("number is 0, must be 1 to 15", [](G* b) { b->number = 0; });
  ExpectBroken<G>("number is 16", [](G* b) { b->number = limits::kPodGpus; });
  ExpectBroken<G>("lost is 2", [](G* b) { b->lost = 2; });
  using L = LinkGeneration;
  ExpectBroken<L>("gpu is 16, must be 0 to 15", [](L* b) { b->gpu = limits::kPodGpus; });
}

TEST(Link, OthersRules) {
  using O = LinkOthers;
  ExpectBroken<O>("may_write is 2", [](O* b) { b->may_write = 2; });
  ExpectBroken<O>("reserved", [](O* b) { b->reserved = 1; });
}

TEST(Link, ClientAndLeaseRules) {
  using C = LinkClient;
  ExpectBroken<C>("client_id is 0", [](C* b) { b->client_id = 0; });
  ExpectNameRules<C>("container", &C::container);
  ExpectBroken<C>("container", [](C* b) { b->container = {}; });
  ExpectBroken<C>("pod \"A\" is not the name", [](C* b) { b->pod = ToNameField("A"); });
  ExpectNameRules<C>("pod_container", &C::pod_container);
  ExpectBroken<C>("both", [](C* b) { b->pod = {}; });
  ExpectBroken<C>("both", [](C* b) { b->pod_container = {}; });
  ExpectFine<C>([](C* b) { b->pod = b->pod_container = {}; });
  using L = LinkLease;
  ExpectBroken<L>("peer_way is 4", [](L* b) { b->peer_way = 4; });
  ExpectBroken<L>("lease_id is 0", [](L* b) { b->lease_id = 0; });
  ExpectBroken<L>("client_id is 0", [](L* b) { b->client_id = 0; });
  ExpectBroken<L>("generation is 0", [](L* b) { b->generation = 0; });
  ExpectBroken<L>("access", [](L* b) { b->access = 0; });
  ExpectBroken<L>("access", [](L* b) { b->access = 3; });
}

TEST(Link, BufferRules) {
  using B = LinkBuffer;
  ExpectNameRules<B>("name", &B::name);
  ExpectBroken<B>("name", [](B* b) { b->name = {}; });
  ExpectNameRules<B>("creator", &B::creator);
  ExpectFine<B>([](B* b) { b->creator = {}; });
  ExpectBroken<B>("declared", [](B* b) { b->declared = 2; });
  ExpectBroken<B>("unknown flags", [](B* b) { b->flags = kFlagAttach; });
  ExpectBroken<B>("on_writer_exit", [](B* b) { b->on_writer_exit = 3; });
  ExpectBroken<B>("state", [](B* b) { b->state = 0; });
  ExpectBroken<B>("state", [](B* b) { b->state = 5; });
  ExpectBroken<B>("same generation", [](B* b) { b->pending = b->current; });
  ExpectFine<B>([](B* b) { b->current = b->pending = 0; });
  ExpectBroken<B>("loaded", [](B* b) { b->loaded_bytes = limits::kBufferBytes + 1; });
  // The states are the registry's, so both must be extended together.
  ExpectFine<B>([](B* b) { b->state = static_cast<uint32_t>(registry::BufferState::kFailed); });
}

TEST(Link, GenerationRules) {
  using B = LinkGeneration;
  const auto vmm = [](B* b) {
    b->transport = 1;
    b->offerer_client = 0;
  };
  ExpectNameRules<B>("name", &B::name);
  ExpectBroken<B>("name", [](B* b) { b->name = {}; });
  ExpectBroken<B>("generation is 0", [](B* b) { b->generation = 0; });
  ExpectBroken<B>("size", [](B* b) { b->size_bytes = 0; });
  ExpectBroken<B>("size", [](B* b) { b->size_bytes = limits::kBufferBytes + 1; });
  ExpectBroken<B>("mapped_bytes", [](B* b) { b->mapped_bytes = b->size_bytes - 1; });
  ExpectBroken<B>("mapped_bytes", [](B* b) { b->mapped_bytes = limits::kBufferBytes + 1; });
  ExpectBroken<B>("transport", [](B* b) { b->transport = 5; });
  const auto blocks = [](B* b) {
    b->transport = 4;
    b->blocks = 2;
    b->pooled = 0;
    b->offerer_client = 0;
  };
  ExpectFine<B>(blocks);
  ExpectBroken<B>("number of blocks", [](B* b) { b->blocks = 1; });
  ExpectBroken<B>("number of blocks", [&](B* b) { (blocks(b), b->blocks = 0); });
  ExpectBroken<B>("number of blocks", [&](B* b) { (blocks(b), b->blocks = limits::kBlocks + 1); });
  ExpectBroken<B>("pooled is 1, must be 0 with transport 4",
                  [&](B* b) { (blocks(b), b->pooled = 1); });
  using K = LinkBlock;
  ExpectBroken<K>("reserved", [](K* b) { b->reserved = 1; });
  ExpectBroken<K>("generation is 0", [](K* b) { b->generation = 0; });
  ExpectBroken<K>("mapped_bytes", [](K* b) { b->mapped_bytes = 0; });
  ExpectBroken<K>("index", [](K* b) { b->index = limits::kBlocks; });
  ExpectFine<B>([](B* b) {
    b->transport = 3;
    b->pooled = 0;
    b->offerer_client = 0;
    b->size_bytes = b->mapped_bytes = 4096;
    b->offset = 0;
  });
  ExpectBroken<B>("invalid sync page", [](B* b) {
    b->transport = 3;
    b->offerer_client = 0;
    b->pooled = 1;
  });
  ExpectBroken<B>("invalid sync page", [](B* b) {
    b->transport = 3;
    b->pooled = 0;
    b->offerer_client = 0;
    b->size_bytes = b->mapped_bytes = (1 << 20) + 4096;
    b->offset = 0;
  });
  ExpectBroken<B>("pooled", [](B* b) { b->pooled = 2; });
  ExpectBroken<B>("without a valid offerer", [](B* b) { b->offerer_pid = 0; });
  ExpectBroken<B>("without a valid offerer", [](B* b) { b->offerer_client = 0; });
  ExpectBroken<B>("without a valid offerer", [](B* b) { b->pooled = 1; });
  ExpectBroken<B>("must be 0 with transport 1", [](B* b) { b->transport = 1; });
  ExpectBroken<B>("offset", [](B* b) { b->offset = b->mapped_bytes - b->size_bytes + 1; });
  ExpectBroken<B>("offset", [](B* b) { b->offset = ~uint64_t{0}; });
  ExpectFine<B>(vmm);
  ExpectFine<B>([&](B* b) {
    vmm(b);
    b->pooled = 1;
    b->publisher_client = 1;
  });
}

TEST(Link, ContentRules) {
  using B = LinkContent;
  ExpectBroken<B>("generation is 0", [](B* b) { b->generation = 0; });
  ExpectBroken<B>("content_bytes is 70368744177665, must be 0 to",
                  [](B* b) { b->content_bytes = limits::kBufferBytes + 1; });
  ExpectFine<B>([](B* b) { b->content_bytes = 0; });
}

TEST(Link, DescriptionRules) {
  using B = LinkDescription;
  ExpectBroken<B>("generation is 0", [](B* b) { b->generation = 0; });
  ExpectBroken<B>("size_bytes is 67108865, must be 0 to 67108864",
                  [](B* b) { b->size_bytes = limits::kDescriptionBytes + 1; });
  ExpectFine<B>([](B* b) { b->size_bytes = 0; });
}

TEST(Link, DropRules) {
  using B = LinkDrop;
  const auto buffer = [](B* b) {
    b->what = 2;
    b->id = 0;
    b->name = ToNameField("weights");
  };
  ExpectFine<B>(buffer);
  ExpectBroken<B>("reserved", [](B* b) { b->reserved = 1; });
  ExpectBroken<B>("what is 0, must be 1 to 4", [](B* b) { b->what = 0; });
  ExpectBroken<B>("what is 5", [](B* b) { b->what = 5; });
  ExpectBroken<B>("id is 0, must not be 0", [](B* b) { b->id = 0; });
  ExpectBroken<B>("name is \"weights\", must be empty",
                  [](B* b) { b->name = ToNameField("weights"); });
  ExpectBroken<B>("must be empty", [](B* b) { b->name.back() = 'x'; });
  ExpectBroken<B>("id is 1, must be 0", [&](B* b) {
    buffer(b);
    b->id = 1;
  });
  ExpectBroken<B>("name \"\" is not a DNS label", [&](B* b) {
    buffer(b);
    b->name = {};
  });
}

TEST(Link, DeviceRules) {
  using B = LinkDevice;
  ExpectBroken<B>("gpu is 16, must be 0 to 15", [](B* b) { b->gpu = limits::kPodGpus; });
  ExpectBroken<B>("must be 0 or 1", [](B* b) { b->lost = 2; });
  ExpectBroken<B>("terminated", [](B* b) { b->reason.fill('x'); });
}

}  // namespace
}  // namespace gpushm::protocol
