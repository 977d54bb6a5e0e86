// Goal: the broker takes only descriptions that nobody can change or shrink, whose pages their
// writer pays for, and gives each to those who may attach the buffer. Method: the real broker, and
// clients that speak the protocol by hand and send what a hostile container would send.
#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "contract/limits.h"
#include "contract/tensors/encode.h"
#include "contract/tensors/table.h"
#include "platform/base/sealed_memory.h"
#include "platform/base/testing.h"
#include "platform/daemon/testing/hung_fuse.h"
#include "sidecar/broker/testing/raw_client.h"

namespace gpushm::broker {
namespace {

using protocol::Kind;
using testing::BrokerProcess;
using ::testing::HasSubstr;
using testing::RawClient;

constexpr std::string_view kText = "what the bytes are";
constexpr int kAllSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

UniqueFd Sealed(std::string_view text) {
  auto made = SealBytes("test", std::as_bytes(std::span(text)));
  EXPECT_TRUE(made) << made.error().ToString();
  return std::move(*made);
}
UniqueFd Memfd(uint64_t bytes, bool filled, int seals) {
  UniqueFd fd(memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  if (filled) {
    EXPECT_EQ(fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)), 0);
  }
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

class DescriptionsTest : public ::testing::Test {
 protected:
  DescriptionsTest()
      : broker_(folder_.path(), testing::TwoContainers()), client_(broker_.Socket("app")) {
    EXPECT_TRUE(client_.Hello());
    const auto made = client_.Create("a", 1 << 20, protocol::kFlagAttach);
    EXPECT_TRUE(made) << made.error().ToString();
    if (made) lease_ = made->lease_id;
  }
  static std::string Describe(RawClient* client, uint64_t lease, const UniqueFd& fd,
                              uint64_t bytes) {
    if (fd) {
      EXPECT_TRUE(client->Announce());
    }
    const std::array descriptors{fd.get()};
    const auto done = client->Call<protocol::EmptyReply>(
        Kind::kDescribe, protocol::DescribeRequest{.lease_id = lease, .size_bytes = bytes},
        fd ? std::span<const int>(descriptors) : std::span<const int>());
    return done ? "" : done.error().ToString();
  }
  // A client of its own, because the broker disconnects one that breaks a rule.
  std::string DescribeAs(const UniqueFd& fd, uint64_t bytes) {
    RawClient client(broker_.Socket("app"));
    EXPECT_TRUE(client.Hello());
    const std::string name = Concat("b", ++names_);
    const auto made = client.Create(name, 4096, protocol::kFlagAttach);
    EXPECT_TRUE(made) << made.error().ToString();
    const std::string why = made ? Describe(&client, made->lease_id, fd, bytes) : "";
    return why;
  }
  static Result<protocol::DescriptionReply> Read(RawClient* client, const std::string& name,
                                                 uint64_t generation = 0) {
    return client->Call<protocol::DescriptionReply>(
        Kind::kDescription, protocol::DescriptionRequest{.name = protocol::ToNameField(name),
                                                         .generation = generation});
  }

  gpushm::testing::TempFolder folder_;
  BrokerProcess broker_;
  RawClient client_;
  uint64_t lease_ = 0;
  int names_ = 0;
};

TEST_F(DescriptionsTest, AReaderGetsTheWritersBytes) {
  ASSERT_EQ(Describe(&client_, lease_, Sealed(kText), kText.size()), "");
  RawClient reader(broker_.Socket("other"));
  ASSERT_TRUE(reader.Hello());
  const auto read = Read(&reader, "a");
  ASSERT_TRUE(read) << read.error().ToString();
  EXPECT_EQ(read->size_bytes, kText.size());
  ASSERT_EQ(reader.descriptors().size(), 1U);
  const UniqueFd given = std::move(reader.descriptors()[0]);
  const auto mapping =
      MapSealed(given, "description", kText.size(), kText.size(), Writers::kNobody);
  ASSERT_TRUE(mapping) << mapping.error().ToString();
  EXPECT_EQ(std::memcmp(mapping->address(), kText.data(), kText.size()), 0);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, given.get(), 0), MAP_FAILED);
  EXPECT_LT(write(given.get(), "x", 1), 0);
  EXPECT_LT(ftruncate(given.get(), 0), 0);
}

TEST_F(DescriptionsTest, ABufferWithoutOneHasNone) {
  const auto read = Read(&client_, "a");
  ASSERT_TRUE(read) << read.error().ToString();
  EXPECT_EQ(read->size_bytes, 0U);
  EXPECT_TRUE(client_.descriptors().empty());
  EXPECT_FALSE(Read(&client_, "b"));
}

TEST_F(DescriptionsTest, WhatCouldChangeOrIsNotPaidForIsRefused) {
  // The broker disconnects who breaks a rule, and logs which one.
  const auto refused = [&](const UniqueFd& fd, uint64_t bytes, const std::string& why) {
    EXPECT_NE(DescribeAs(fd, bytes), "") << why;
    EXPECT_TRUE(broker_.WaitForLog(why)) << why;
  };
  refused(UniqueFd(), 1, "came with 0 descriptors");
  refused(Memfd(4096, true, 0), 4096,
          "client=3 reason=\"the description from the peer is not sealed");
  for (const int lacking : {F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE}) {
    EXPECT_THAT(DescribeAs(Memfd(4096, true, kAllSeals & ~lacking), 4096),
                HasSubstr("closed the connection"))
        << lacking;
  }
  refused(Memfd(1 << 20, false, kAllSeals), 1 << 20, "unallocated");
  refused(Memfd(8192, true, kAllSeals), 4096, "has 8192 bytes");
  refused(Sealed(kText), kText.size() + 1, "has 18 bytes");
  refused(Sealed(kText), limits::kDescriptionBytes + 1,
          "size_bytes is 67108865, must be 1 to 67108864");
  const UniqueFd file(open(folder_.path().c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600));
  EXPECT_THAT(DescribeAs(file, 4096), HasSubstr("not a memfd"));
  EXPECT_THAT(DescribeAs(UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC)), 4096),
              HasSubstr("not a memfd"));
  EXPECT_EQ(Describe(&client_, lease_, Sealed(kText), kText.size()), "") << "others go on";
}

// Goal: a file of a file system that does not respond blocks nobody.
TEST_F(DescriptionsTest, AFileThatHangsIsRefusedAtOnce) {
  if (const auto missing = gpushm::testing::HungFuse::MissingHere()) GTEST_SKIP() << *missing;
  gpushm::testing::TempFolder mounted;
  auto fuse = gpushm::testing::HungFuse::Mount(mounted.path(),
                                               gpushm::testing::HangAt::kAllOnceOpen, 1 << 20);
  ASSERT_TRUE(fuse) << fuse.error().ToString();
  const UniqueFd hung(open((mounted / "file").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(hung);
  EXPECT_THAT(DescribeAs(hung, 4096), HasSubstr("not a memfd"));
  EXPECT_EQ(Describe(&client_, lease_, Sealed(kText), kText.size()), "") << "others go on";
  fuse->Abort();
}

}  // namespace
}  // namespace gpushm::broker
