// Goal: no order of close and detach crashes, and a handle that is used too late does no harm.
#include <gmock/gmock-matchers.h>

#include <atomic>
#include <fstream>
#include <string>

#include "runtime/client/testing/client_fixture.h"

// After the internal headers, which have a gpushm::Result of their own.
#include "gpushm/gpushm.hpp"

namespace gpushm::client {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class LifetimeTest : public ClientTest {
 protected:
  void SetUp() override {
    ClientTest::SetUp();
    broker_->Add("weights", 5, kMiB, api_);
    Open();
  }
  static void ExpectNothing(gpushm_attachment* attachment) {
    auto info = Sized<gpushm_attachment_info>();
    EXPECT_EQ(gpushm_attachment_address(attachment), 0u);
    EXPECT_EQ(gpushm_attachment_size(attachment), 0u);
    EXPECT_EQ(gpushm_attachment_check(attachment), GPUSHM_INVALID_ARGUMENT);
    EXPECT_EQ(gpushm_attachment_get_info(attachment, &info), GPUSHM_INVALID_ARGUMENT);
    EXPECT_EQ(gpushm_attachment_publish(attachment), GPUSHM_INVALID_ARGUMENT);
    EXPECT_EQ(gpushm_attachment_detach(attachment, nullptr), GPUSHM_INVALID_ARGUMENT);
    EXPECT_STRNE(gpushm_last_error()->remedy, "");
  }
};

TEST_F(LifetimeTest, CloseDetachesAndALaterDetachDoesNothing) {
  gpushm_attachment* const once = Attach("weights");
  gpushm_attachment* const twice = Attach("weights", GPUSHM_ACCESS_READ_WRITE);
  ASSERT_EQ(Attach("weights", GPUSHM_ACCESS_READ_WRITE), twice);
  client_.reset();
  EXPECT_TRUE(broker_->leases().empty());
  ExpectNothing(once);
  ExpectNothing(twice);
  ExpectNothing(twice);
}

TEST_F(LifetimeTest, ASecondDetachDoesNothing) {
  gpushm_attachment* const first = Attach("weights");
  ASSERT_EQ(gpushm_attachment_detach(first, nullptr), GPUSHM_OK);
  ExpectNothing(first);
  // The next attachment gets the same memory, but a different handle.
  gpushm_attachment* const next = Attach("weights");
  ASSERT_NE(next, nullptr);
  EXPECT_NE(next, first);
  ExpectNothing(first);
  EXPECT_EQ(gpushm_attachment_check(next), GPUSHM_OK);
}

// The same while the mapping still waits for work: another thread's call may end it at any moment.
TEST_F(LifetimeTest, ADeferredDetachIsOne) {
  const PrimaryContext context = MakeContext();
  const auto stream = Stream::Create(*api_);
  const auto word = PinnedBuffer::Allocate(*api_, 4096);
  ASSERT_TRUE(stream && word);
  const std::atomic_ref<uint32_t> flag(*reinterpret_cast<uint32_t*>(word->data()));
  flag.store(0);
  CUdeviceptr at = 0;
  ASSERT_EQ(api_->cuMemHostGetDevicePointer(&at, word->data(), 0), CUDA_SUCCESS);
  ASSERT_EQ(api_->cuStreamWaitValue32(stream->get(), at, 1, CU_STREAM_WAIT_VALUE_GEQ),
            CUDA_SUCCESS);
  gpushm_attachment* const weights = Attach("weights");
  void* const streams[] = {stream->get()};
  auto options = Sized<gpushm_detach_options>();
  options.streams = streams;
  options.stream_count = 1;
  options.defer = 1;
  ASSERT_EQ(gpushm_attachment_detach(weights, &options), GPUSHM_OK) << gpushm_last_error()->text;
  EXPECT_EQ(broker_->leases().size(), 1u) << "work is pending";
  ExpectNothing(weights);
  EXPECT_EQ(gpushm_attachment_detach(weights, &options), GPUSHM_INVALID_ARGUMENT);
  flag.store(1);
  ASSERT_EQ(api_->cuStreamSynchronize(stream->get()), CUDA_SUCCESS);
  ASSERT_NE(Attach("weights"), nullptr);
  EXPECT_EQ(broker_->leases().size(), 1u) << "of the new attachment alone";
}

TEST_F(LifetimeTest, AClosedClientIsNone) {
  gpushm_client* const closed = client_.release();
  gpushm_close(closed);
  gpushm_close(closed);
  EXPECT_EQ(gpushm_last_error()->status, GPUSHM_INVALID_ARGUMENT);
  EXPECT_THAT(gpushm_last_error()->what,
              testing::HasSubstr(Concat(static_cast<const void*>(closed))));
  auto info = Sized<gpushm_info>();
  EXPECT_EQ(gpushm_lookup(closed, "weights", &info), GPUSHM_INVALID_ARGUMENT);
  gpushm_attachment* attachment = nullptr;
  EXPECT_EQ(gpushm_attach(closed, "weights", nullptr, &attachment), GPUSHM_INVALID_ARGUMENT);
}

TEST_F(LifetimeTest, WhatIsNoHandleIsSaidToBeNone) {
  int word = 0;
  auto info = Sized<gpushm_info>();
  auto* const wild = reinterpret_cast<gpushm_client*>(&word);
  EXPECT_EQ(gpushm_lookup(wild, "weights", &info), GPUSHM_INVALID_ARGUMENT);
  auto* const other = reinterpret_cast<gpushm_client*>(Attach("weights"));
  EXPECT_EQ(gpushm_lookup(other, "weights", &info), GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(gpushm_lookup(nullptr, "weights", &info), GPUSHM_INVALID_ARGUMENT);
}

TEST_F(LifetimeTest, OtherClientsStay) {
  const ClientOwner other(OpenClient(folder_.path()));
  gpushm_attachment* others = nullptr;
  ASSERT_EQ(gpushm_attach(other.get(), "weights", nullptr, &others), GPUSHM_OK);
  gpushm_attachment* const own = Attach("weights");
  client_.reset();
  ExpectNothing(own);
  EXPECT_EQ(gpushm_attachment_check(others), GPUSHM_OK);
  EXPECT_EQ(gpushm_attachment_detach(others, nullptr), GPUSHM_OK);
}

// Counts the brokers' registries that this process has mapped read-only.
size_t CountRegistries() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    const bool is_registry = line.find("gpushm-registry") != line.npos;
    count += is_registry && line.find(" r--s ") != line.npos ? 1 : 0;
  }
  return count;
}

// Goal: an attachment that outlives many brokers keeps none of their registries in memory, and
// always knows that it is current.
TEST_F(LifetimeTest, AnAttachmentKeepsNoFormerBrokersRegistry) {
  gpushm_attachment* const weights = Attach("weights");
  ASSERT_NE(weights, nullptr);
  for (uint64_t epoch = 2; epoch < 8; ++epoch) {
    Start(epoch, broker_->leases());
    broker_->Add("weights", 5, kMiB, api_);
    ASSERT_EQ(Attach("weights"), weights) << gpushm_last_error()->text;
    ASSERT_EQ(gpushm_attachment_check(weights), GPUSHM_OK);
    ASSERT_EQ(gpushm_attachment_check(weights), GPUSHM_OK) << "and by the short way";
    EXPECT_EQ(CountRegistries(), 1u) << "after " << epoch << " brokers";
  }
  broker_->Add("weights", 6, kMiB, api_);
  EXPECT_EQ(gpushm_attachment_check(weights), GPUSHM_STALE);
}

TEST_F(LifetimeTest, AnAttachmentMayOutliveItsClientInCpp) {
  gpushm::Attachment attachment;
  {
    auto client = gpushm::Client::Open({.folder = folder_.path()});
    ASSERT_TRUE(client) << client.error().text();
    auto attached = client->Attach("weights");
    ASSERT_TRUE(attached) << attached.error().text();
    attachment = std::move(*attached);
    EXPECT_NE(attachment.address(), 0u);
  }
  EXPECT_EQ(attachment.address(), 0u);
  EXPECT_EQ(attachment.GetInfo().error().status(), GPUSHM_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace gpushm::client
