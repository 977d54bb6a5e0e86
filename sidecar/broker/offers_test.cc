// Goal: the broker shares a range of several allocations only if it got a descriptor of GPU memory
// for each of them, and keeps no more of them than it may. Method: the real broker, and clients
// that speak the protocol by hand and send what a hostile container would send.
#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "contract/limits.h"
#include "platform/base/testing.h"
#include "sidecar/broker/testing/broker_process.h"
#include "sidecar/broker/testing/raw_client.h"

namespace gpushm::broker {
namespace {

using protocol::Kind;
using testing::BrokerProcess;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::RawClient;

constexpr uint64_t kBlockBytes = 2 << 20;

class OffersTest : public ::testing::Test {
 protected:
  OffersTest() : broker_(folder_.path(), testing::TwoContainers()), client_(broker_.Socket("app")) {
    const auto hello = client_.Hello();
    EXPECT_TRUE(hello);
    if (hello) gpu_ = hello->gpu_uuid;
    // The descriptor of a buffer is as good as one of the application's own memory.
    const auto made = client_.Create("made", kBlockBytes, protocol::kFlagAttach);
    EXPECT_TRUE(made);
    if (made) memory_ = std::move(client_.descriptors().at(0));
  }
  // Returns the error's text, or "".
  static std::string Stage(RawClient* client, uint32_t index, int fd,
                           uint64_t bytes = kBlockBytes) {
    if (auto announced = client->Announce(); !announced) return announced.error().what();
    const auto staged = client->Call<protocol::EmptyReply>(
        Kind::kStageBlock,
        protocol::StageBlockRequest{.mapped_bytes = bytes, .index = index, .reserved = 0},
        {&fd, 1});
    return staged ? "" : staged.error().what();
  }
  std::string Offer(RawClient* client, const std::string& name, uint64_t offset, uint64_t bytes,
                    uint64_t mapped_bytes) const {
    protocol::OfferRequest body{};
    body.name = protocol::ToNameField(name);
    body.size_bytes = bytes;
    body.mapped_bytes = mapped_bytes;
    body.transport = static_cast<uint32_t>(protocol::Transport::kBlocks);
    body.offset = offset;
    body.gpu_uuid = gpu_;
    const auto offered = client->Call<protocol::OfferReply>(Kind::kOffer, body);
    return offered ? "" : offered.error().what();
  }
  std::string StageAll(RawClient* client, uint32_t blocks) {
    for (uint32_t i = 0; i < blocks; ++i) {
      if (const std::string why = Stage(client, i, memory_.get()); !why.empty()) return why;
    }
    return "";
  }
  ptrdiff_t OpenInBroker() const {
    const std::filesystem::directory_iterator all(Concat("/proc/", broker_.pid(), "/fd"));
    return std::distance(begin(all), end(all));
  }

  gpushm::testing::TempFolder folder_;
  BrokerProcess broker_;
  RawClient client_;
  std::array<uint8_t, 16> gpu_{};
  UniqueFd memory_;
};

TEST_F(OffersTest, WhoAttachesGetsEachBlockOnce) {
  ASSERT_EQ(StageAll(&client_, 3), "");
  ASSERT_EQ(Offer(&client_, "wide", 4096, 2 * kBlockBytes, 3 * kBlockBytes), "");
  RawClient reader(broker_.Socket("other"));
  ASSERT_TRUE(reader.Hello());
  const auto grant = reader.Attach("wide");
  ASSERT_TRUE(grant) << grant.error().ToString();
  EXPECT_TRUE(reader.descriptors().empty());
  EXPECT_EQ(grant->blocks, 3u);
  EXPECT_EQ(grant->offset, 4096u);
  const auto block = [&](RawClient* client, uint32_t index) {
    return client->Call<protocol::BlockReply>(
        Kind::kBlock,
        protocol::BlockRequest{.lease_id = grant->lease_id, .index = index, .reserved = 0});
  };
  for (uint32_t i = 0; i < 3; ++i) {
    const auto got = block(&reader, i);
    ASSERT_TRUE(got) << got.error().ToString();
    EXPECT_EQ(got->mapped_bytes, kBlockBytes);
    EXPECT_EQ(reader.descriptors().size(), 1u);
  }
  EXPECT_THAT(block(&reader, 3).error().what(), HasSubstr("has 3 blocks, but block 3"));
  EXPECT_EQ(block(&client_, 0).error().code(), Code::kNotFound) << "another client's lease";
}

TEST_F(OffersTest, WhatDoesNotFitIsRefusedAndClosed) {
  const ptrdiff_t open_before = OpenInBroker();
  const auto refused = [&](uint32_t staged, uint64_t offset, uint64_t bytes, uint64_t mapped) {
    EXPECT_EQ(StageAll(&client_, staged), "");
    EXPECT_THAT(Offer(&client_, "odd", offset, bytes, mapped), HasSubstr("do not lie in"));
  };
  refused(0, 0, kBlockBytes, kBlockBytes);
  refused(2, 0, 2 * kBlockBytes, 3 * kBlockBytes);
  refused(2, 0, kBlockBytes, 2 * kBlockBytes);            // Without a byte of the second.
  refused(2, kBlockBytes, kBlockBytes, 2 * kBlockBytes);  // Without a byte of the first.
  EXPECT_THAT(Stage(&client_, 1, memory_.get()), HasSubstr("block 1 of an offer was sent after 0"));
  ASSERT_EQ(StageAll(&client_, 2), "");
  EXPECT_THAT(Stage(&client_, 1, memory_.get()), HasSubstr("block 1 of an offer was sent after 2"));
  EXPECT_EQ(Stage(&client_, 0, memory_.get()), "") << "begins anew";
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_NE(Stage(&client_, 1, null.get()), "") << "no GPU memory";
  EXPECT_THAT(Offer(&client_, "odd", 0, 2 * kBlockBytes, 2 * kBlockBytes), HasSubstr("1 blocks"));
  ASSERT_EQ(StageAll(&client_, 1), "");
  EXPECT_THAT(Offer(&client_, "made", 1, 4096, kBlockBytes), HasSubstr("already exists"));
  EXPECT_THAT(Offer(&client_, "odd", 1, 4096, kBlockBytes), HasSubstr("0 blocks"));
  EXPECT_TRUE(Eventually([&] { return OpenInBroker() <= open_before; })) << OpenInBroker();
}

// What a process staged, and all offers together, are bounded, and end with their owner or name.
TEST_F(OffersTest, BlocksAreBoundedAndEndWithTheirOwner) {
  const ptrdiff_t open_before = OpenInBroker();
  {
    std::vector<std::unique_ptr<RawClient>> others;
    uint32_t staged = 0;
    for (; staged < limits::kAllBlocks; staged += limits::kBlocks) {
      others.push_back(std::make_unique<RawClient>(broker_.Socket("other")));
      ASSERT_TRUE(others.back()->Hello());
      ASSERT_EQ(StageAll(others.back().get(), limits::kBlocks), "");
    }
    EXPECT_THAT(Stage(&client_, 0, memory_.get()), HasSubstr("the limit is 2048"));
    EXPECT_EQ(Offer(others[0].get(), "largest", 0, limits::kBlocks * kBlockBytes,
                    limits::kBlocks * kBlockBytes),
              "");
    EXPECT_THAT(Stage(&client_, 0, memory_.get()), HasSubstr("the limit is 2048"));
    EXPECT_TRUE(others[0]->Delete("largest"));
    EXPECT_EQ(Stage(&client_, 0, memory_.get()), "");
  }
  EXPECT_TRUE(Eventually([&] { return OpenInBroker() <= open_before + 1; })) << OpenInBroker();
}

}  // namespace
}  // namespace gpushm::broker
