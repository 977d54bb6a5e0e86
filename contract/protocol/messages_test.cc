#include "contract/protocol/messages.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "contract/limits.h"
#include "contract/protocol/testing/messages.h"

namespace gpushm::protocol {
namespace {

using testing::ForEachMessage;
using ::testing::HasSubstr;
using testing::Valid;

std::span<const std::byte> Bytes(const Buffer& buffer, size_t size_bytes) {
  return {buffer.data(), size_bytes};
}

TEST(Messages, EveryMessageComesBackAsItWas) {
  std::set<Kind> kinds;
  ForEachMessage([&]<typename Body>(Kind kind, bool reply) {
    kinds.insert(kind);
    const Body sent = Valid<Body>();
    Buffer buffer;
    const size_t size = Encode(kind, reply, 42, 0, sent, &buffer);
    const auto header = ParseHeader(Bytes(buffer, size));
    ASSERT_TRUE(header) << header.error().ToString();
    EXPECT_EQ(header->request_id, 42u);
    EXPECT_EQ(header->version, kind == Kind::kHello ? 1 : kMaxVersion);
    EXPECT_EQ(header->kind, static_cast<uint16_t>(kind) | (reply ? kReplyBit : 0));
    const auto received = Parse<Body>(Bytes(buffer, size));
    ASSERT_TRUE(received) << static_cast<int>(kind) << ": " << received.error().ToString();
    EXPECT_EQ(std::memcmp(&*received, &sent, sizeof sent), 0);
  });
  EXPECT_EQ(kinds.size(), size_t{kMaxKind});
}

TEST(Messages, OfAnotherSizeIsCorrupt) {
  ForEachMessage([&]<typename Body>(Kind kind, bool reply) {
    Buffer buffer{};
    const size_t size = Encode(kind, reply, 1, 0, Valid<Body>(), &buffer);
    for (const size_t wrong : {sizeof(Header), size - 1, size + 1}) {
      const auto parsed = Parse<Body>(Bytes(buffer, wrong));
      ASSERT_FALSE(parsed);
      EXPECT_EQ(parsed.error().code(), Code::kCorrupt);
    }
  });
}

TEST(Messages, HeadersAreChecked) {
  const auto broken = [](const std::function<void(Header*)>& change) -> int {
    Buffer buffer;
    const size_t size = EncodeRequest(Kind::kDetach, 1, DetachRequest{1}, &buffer);
    Header header;
    std::memcpy(&header, buffer.data(), sizeof header);
    change(&header);
    std::memcpy(buffer.data(), &header, sizeof header);
    const auto parsed = ParseHeader(Bytes(buffer, size));
    return parsed ? 0 : static_cast<int>(parsed.error().code());
  };
  const int corrupt = static_cast<int>(Code::kCorrupt);
  EXPECT_EQ(broken([](Header*) {}), 0);
  EXPECT_EQ(broken([](Header* h) { h->magic ^= 1; }), corrupt);
  const int incompatible = static_cast<int>(Code::kIncompatible);
  for (const int version : {0, 1, kMinVersion - 1, kMaxVersion + 1}) {
    EXPECT_EQ(broken([&](Header* h) { h->version = static_cast<uint16_t>(version); }), incompatible)
        << version;
  }
  EXPECT_EQ(broken([](Header* h) { h->kind = 1; }), incompatible) << "a hello has version 1";
  EXPECT_EQ(broken([](Header* h) { ++h->size_bytes; }), corrupt);
  EXPECT_EQ(broken([](Header* h) { h->kind = 0; }), corrupt);
  EXPECT_EQ(broken([](Header* h) { h->kind = kReplyBit; }), corrupt);
  EXPECT_EQ(broken([](Header* h) { h->kind = kMaxKind + 1; }), corrupt);
  EXPECT_EQ(broken([](Header* h) { h->status = kMaxCode + 1; }), corrupt);
  for (size_t size = 0; size < sizeof(Header); ++size) {
    EXPECT_FALSE(ParseHeader(Bytes(Buffer{}, size)));
  }
}

// One broken rule: a change to a valid body, and the error of Validate.
template <typename Body>
void ExpectBroken(const char* rule, const std::function<void(Body*)>& change) {
  Body body = Valid<Body>();
  ASSERT_TRUE(Validate(body)) << rule;
  change(&body);
  const auto valid = Validate(body);
  ASSERT_FALSE(valid) << rule;
  EXPECT_EQ(valid.error().code(), Code::kCorrupt);
  EXPECT_THAT(valid.error().what(), HasSubstr(rule));
}

// The rules for every name.
template <typename Body>
void ExpectNameRules(const char* rule, NameField Body::* field) {
  for (const char* bad : {"", "-a", "a-", "A", "a_b", "a.b", "a b", "\xc3\xa4", "../x"}) {
    ExpectBroken<Body>(rule, [&](Body* body) { body->*field = ToNameField(bad); });
  }
  ExpectBroken<Body>(rule, [&](Body* body) { (body->*field).fill('a'); });     // Not terminated.
  ExpectBroken<Body>(rule, [&](Body* body) { (body->*field).back() = 'x'; });  // Not padded.
}

TEST(Messages, HelloRules) {
  using B = HelloRequest;
  ExpectBroken<B>("reserved", [](B* b) { b->reserved = 1; });
  ExpectBroken<B>("min_version 3 is above max_version 2", [](B* b) { b->min_version = 3; });
  ExpectBroken<B>("library is not NUL-terminated", [](B* b) { b->library.fill('x'); });
  ExpectBroken<B>("must both be set", [](B* b) { b->resume_client_id = 0; });
  ExpectBroken<B>("must both be set", [](B* b) { b->resume_token = {}; });
  using R = HelloReply;
  ExpectBroken<R>("reserved", [](R* b) { b->reserved0 = 1; });
  ExpectBroken<R>("client_id is 0", [](R* b) { b->client_id = 0; });
  ExpectBroken<R>("token is zero", [](R* b) { b->token = {}; });
  ExpectBroken<R>("must be 0 or 1", [](R* b) { b->resumed = 2; });
  ExpectBroken<R>("leases is 65537, must be 0 to 65536",
                  [](R* b) { b->leases = limits::kLeases + 1; });
  ExpectBroken<R>("new client cannot have leases", [](R* b) { b->resumed = 0; });
  ExpectBroken<R>("must be 0 or 1", [](R* b) { b->simulated = 2; });
  ExpectNameRules<R>("hello: container", &R::container);
}

// Goal: a hostile peer's bytes do not reach a terminal, and none of them are hidden.
TEST(Messages, ARefusedNameIsShownWithAllOfItsBytes) {
  DeleteRequest body{.name = ToNameField("a\x1b[m")};
  body.name[6] = 'x';
  EXPECT_THAT(Validate(body).error().what(),
              HasSubstr(R"(delete: name "a\x1b[m\x00\x00x" is not a DNS label)"));
}

TEST(Messages, AttachAndDetachRules) {
  using B = AttachRequest;
  ExpectBroken<B>("peer_way is 4, must be 0 to 3", [](B* b) { b->peer_way = 4; });
  ExpectNameRules<B>("attach: name", &B::name);
  ExpectBroken<B>("access is 0, must be 1 or 2", [](B* b) { b->access = 0; });
  ExpectBroken<B>("access is 3, must be 1 or 2", [](B* b) { b->access = 3; });
  using R = AttachReply;
  ExpectBroken<R>("lease_id is 0", [](R* b) { b->lease_id = 0; });
  ExpectBroken<R>("number of blocks", [](R* b) { b->blocks = limits::kBlocks + 1; });
  ExpectBroken<DetachRequest>("lease_id is 0", [](DetachRequest* b) { b->lease_id = 0; });
}

TEST(Messages, MakingRules) {
  using M = MakeReply;
  ExpectBroken<M>("generation is 0", [](M* b) { b->generation = 0; });
  ExpectBroken<M>("make: size", [](M* b) { b->size_bytes = 0; });
  ExpectBroken<M>("make: size", [](M* b) { b->size_bytes = limits::kBufferBytes + 1; });
  ExpectBroken<M>("mapped_bytes", [](M* b) { b->mapped_bytes = b->size_bytes - 1; });
  ExpectBroken<M>("mapped_bytes", [](M* b) { b->mapped_bytes = ~uint64_t{0}; });
  ExpectBroken<M>("gpu is 16", [](M* b) { b->gpu = limits::kPodGpus; });
  using B = CreateRequest;
  ExpectNameRules<B>("create: name", &B::name);
  ExpectBroken<B>("create: size", [](B* b) { b->size_bytes = 0; });
  ExpectBroken<B>("create: size", [](B* b) { b->size_bytes = limits::kBufferBytes + 1; });
  ExpectBroken<B>("unknown flags 0x20, the known ones are 0xf1f",
                  [](B* b) { b->flags |= kFlagsAll + 1; });
  ExpectBroken<B>("kFlagUnpublished without kFlagAttach",
                  [](B* b) { b->flags = kFlagUnpublished; });
  ExpectBroken<B>("on_writer_exit", [](B* b) { b->on_writer_exit = 3; });
  using R = ReplaceRequest;
  ExpectBroken<R>("reserved", [](R* b) { b->reserved = 1; });
  ExpectNameRules<R>("replace: name", &R::name);
  ExpectBroken<R>("replace: size", [](R* b) { b->size_bytes = limits::kBufferBytes + 1; });
  ExpectBroken<R>("unknown flags", [](R* b) { b->flags = kFlagOneWriter; });
  ExpectBroken<R>("kFlagUnpublished without kFlagAttach",
                  [](R* b) { b->flags = kFlagUnpublished; });
  ExpectBroken<PublishRequest>("lease_id is 0", [](PublishRequest* b) { b->lease_id = 0; });
  ExpectNameRules<DeleteRequest>("delete: name", &DeleteRequest::name);
}

TEST(Messages, OfferRules) {
  using B = OfferRequest;
  ExpectNameRules<B>("offer: name", &B::name);
  ExpectBroken<B>("offer: size", [](B* b) { b->size_bytes = 0; });
  ExpectBroken<B>("mapped_bytes", [](B* b) { b->mapped_bytes = b->size_bytes - 1; });
  ExpectBroken<B>("offset", [](B* b) { b->offset = b->mapped_bytes - b->size_bytes + 1; });
  ExpectBroken<B>("unknown flags", [](B* b) { b->flags = kFlagAttach; });
  ExpectBroken<B>("on_writer_exit", [](B* b) { b->on_writer_exit = 3; });
  ExpectBroken<B>("transport is 3", [](B* b) { b->transport = 3; });
  ExpectBroken<B>("pid is 0", [](B* b) { b->pid = 0; });
  ExpectBroken<B>("pid is -1, must be above 0", [](B* b) { b->pid = -1; });
  ExpectBroken<OfferReply>("generation is 0", [](OfferReply* b) { b->generation = 0; });
  using S = StageBlockRequest;
  ExpectBroken<S>("reserved", [](S* b) { b->reserved = 1; });
  ExpectBroken<S>("mapped_bytes", [](S* b) { b->mapped_bytes = 0; });
  ExpectBroken<S>("index", [](S* b) { b->index = limits::kBlocks; });
  using K = BlockRequest;
  ExpectBroken<K>("reserved", [](K* b) { b->reserved = 1; });
  ExpectBroken<K>("lease_id is 0", [](K* b) { b->lease_id = 0; });
  ExpectBroken<K>("index", [](K* b) { b->index = limits::kBlocks; });
  ExpectBroken<BlockReply>("mapped_bytes", [](BlockReply* b) { b->mapped_bytes = 0; });
}

TEST(Messages, LookingRules) {
  using B = HoldersRequest;
  ExpectBroken<B>("holders: name", [](B* b) { b->name = ToNameField("-"); });
  ExpectBroken<B>("holders: name", [](B* b) { b->name[5] = 'x'; });
  using R = HoldersReply;
  ExpectBroken<R>("reserved", [](R* b) { b->reserved = 1; });
  ExpectBroken<R>("count is 21, must be 0 to 20", [](R* b) { b->count = kHoldersPerReply + 1; });
  ExpectBroken<R>("buffer \"\" is not a DNS label", [](R* b) { b->count = 2; });
  ExpectBroken<R>("container \"-pp\" is not a DNS label",
                  [](R* b) { b->entries[0].container[0] = '-'; });
  ExpectBroken<R>("access is 3", [](R* b) { b->entries[0].access = 3; });
  ExpectBroken<R>("peer_way is 4", [](R* b) { b->entries[0].peer_way = 4; });
  using I = BrokerInfoRequest;
  ExpectBroken<I>("reserved", [](I* b) { b->reserved = 1; });
  ExpectBroken<BrokerInfoReply>("must be 0 or 1", [](BrokerInfoReply* b) { b->simulated = 2; });
  ExpectNameRules<BrokerInfoReply>("broker info: container", &BrokerInfoReply::container);
}

TEST(Messages, GpusRules) {
  using B = GpusReply;
  ExpectBroken<GpusRequest>("reserved", [](GpusRequest* b) { b->reserved = 1; });
  ExpectBroken<B>("count is 0, must be 1 to 16", [](B* b) { b->count = 0; });
  ExpectBroken<B>("count is 17", [](B* b) { b->count = limits::kPodGpus + 1; });
  ExpectBroken<B>("lost is 2, must be 0 or 1", [](B* b) { b->entries[3].lost = 2; });
  ExpectBroken<B>("reserved", [](B* b) { b->reserved = 1; });
  ExpectBroken<B>("reserved", [](B* b) { b->entries[15].reserved = 1; });
  EXPECT_EQ(GpuOfFlags(kFlagAttach | (3U << kFlagGpuShift)), 3U);
}

TEST(Messages, ContentRules) {
  using C = ContentRequest;
  ExpectBroken<C>("reserved", [](C* b) { b->reserved = 1; });
  ExpectBroken<C>("lease_id is 0", [](C* b) { b->lease_id = 0; });
  ExpectBroken<C>("must be 0 or 1", [](C* b) { b->complete = 2; });
  ExpectBroken<C>("a digest of content that is not complete", [](C* b) { b->complete = 0; });
  using A = AnnounceDescriptorRequest;
  ExpectBroken<A>("reserved", [](A* b) { b->reserved = 1; });
  ExpectBroken<EmptyReply>("reserved", [](EmptyReply* b) { b->reserved = 1; });
  ExpectBroken<ErrorBody>("reserved", [](ErrorBody* b) { b->reserved = 1; });
  ExpectBroken<ErrorBody>("text", [](ErrorBody* b) { b->what.fill('x'); });
  ExpectBroken<ErrorBody>("remedy", [](ErrorBody* b) { b->remedy.fill('x'); });
}

// Goal: whatever a process says of its load, what reaches others is one line of text.
TEST(Messages, ReasonRules) {
  using B = ReasonRequest;
  ExpectNameRules<B>("reason: name", &B::name);
  ExpectBroken<B>("code is 0, must be 1 to 22", [](B* b) { b->code = 0; });
  ExpectBroken<B>("code is 23", [](B* b) { b->code = kMaxCode + 1; });
  ExpectBroken<B>("failed is 2, must be 0 or 1", [](B* b) { b->failed = 2; });
  const auto refuse = [](std::string_view text) {
    ExpectBroken<B>("must be a line of 1 to 255 bytes of UTF-8", [&](B* b) {
      b->text = {};
      std::ranges::copy(text, b->text.begin());
    });
  };
  refuse("");
  refuse("two\nlines");
  refuse("\x1b[31mred");
  refuse("\x7f");
  refuse(
      "\xc2\x9b"
      "31m");  // The same escape as one character of C1.
  refuse("\xff");
  refuse("\xc0\xaf");
  refuse("\xed\xa0\x80");
  refuse("cut \xe2\x82");
  refuse(std::string_view("text\0behind", 11));
  refuse(std::string(256, 'x'));

  const auto line = [](std::string_view text) {
    const LineField field = ToLineField(text);
    return std::string(FromLineField(field));
  };
  EXPECT_EQ(line("models/\xc3\xa4.bin, \xe2\x82\xac, \xf0\x9f\x99\x82"),
            "models/\xc3\xa4.bin, \xe2\x82\xac, \xf0\x9f\x99\x82");
  EXPECT_EQ(line("a\nb\tc\x1b\x7f\xff\xc2\x9b"), "a?b?c?????");
  EXPECT_EQ(line(std::string(300, 'x')), std::string(255, 'x'));
  EXPECT_EQ(line(std::string(254, 'x') + "\xc3\xa4"), std::string(254, 'x'))
      << "no half of a character";
}

TEST(Messages, ErrorsTravelWithTextRemedyAndErrno) {
  Buffer buffer;
  const Status sent(Code::kSystem, "open /x", "look at /x", 13);
  size_t size = EncodeError(Kind::kCreate, 5, sent, &buffer);
  const auto received = ParseError(Bytes(buffer, size));
  ASSERT_TRUE(received);
  EXPECT_EQ(received->ToString(), sent.ToString());
  EXPECT_EQ(received->sys_errno(), 13);

  const Status endless(Code::kInternal, std::string(10'000, 'w'), std::string(10'000, 'r'));
  size = EncodeError(Kind::kCreate, 5, endless, &buffer);
  const auto cut = ParseError(Bytes(buffer, size));
  ASSERT_TRUE(cut) << "a long text must be cut, not refused";
  EXPECT_EQ(cut->what().size(), ErrorBody{}.what.size() - 1);

  size = Encode(Kind::kCreate, true, 5, 0, ErrorBody{}, &buffer);
  EXPECT_FALSE(ParseError(Bytes(buffer, size))) << "without a status";
}

TEST(Messages, NamesAreDnsLabels) {
  EXPECT_TRUE(IsDnsLabel("a"));
  EXPECT_TRUE(IsDnsLabel(std::string(63, '0')));
  EXPECT_FALSE(IsDnsLabel(std::string(64, '0')));
  const auto bad = CheckName("Weights", "buffer");
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(bad.error().what(), HasSubstr("buffer \"Weights\""));
  EXPECT_EQ(FromNameField(ToNameField(std::string(100, 'a'))).size(), 63u);
}

}  // namespace
}  // namespace gpushm::protocol
