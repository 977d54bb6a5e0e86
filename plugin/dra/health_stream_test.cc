#include "plugin/dra/health_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpushm::plugin::dra {
namespace {

using ::testing::ElementsAre;

Offer OneGpu(const std::string& reason) {
  Offer offer;
  offer.devices = {{.uuid = "GPU-AAAA-1", .name = "NVIDIA H200"}};
  offer.gpus = {{.uuid = "GPU-AAAA-1", .units = 15, .tokens = 64, .bytes = 1}};
  if (!reason.empty()) {
    offer.gpus[0].healthy = false;
    offer.reasons["GPU-AAAA-1"] = reason;
  }
  return offer;
}

TEST(HealthStreamTest, DevicesAreNamedAsInTheSlices) {
  const Offer offer = OneGpu("");
  EXPECT_THAT(StatesOf(offer),
              ElementsAre(DeviceState{DevicesOf(offer)[0]["name"].get<std::string>(), ""}));
}

// Its pods stay, and their users want to know.
TEST(HealthStreamTest, AGpuThatSomebodyElseHandsOutIsInTheList) {
  Offer offer = OneGpu("XID 79");
  offer.gpus[0].taken_by = "nvidia.com/gpu";
  EXPECT_TRUE(DevicesOf(offer).empty());
  EXPECT_THAT(StatesOf(offer),
              ElementsAre(DeviceState{"gpu-aaaa-1", "GPU GPU-AAAA-1 is unhealthy: XID 79"}));
}

TEST(HealthStreamTest, ADrainedGpuIsHealthy) {
  Offer offer = OneGpu("");
  offer.gpus[0].drained = "maintenance";
  EXPECT_THAT(StatesOf(offer), ElementsAre(DeviceState{"gpu-aaaa-1", ""}));
}

TEST(HealthStreamTest, WithoutAReasonItSaysSoMuch) {
  Offer offer = OneGpu("");
  offer.gpus[0].healthy = false;
  EXPECT_THAT(StatesOf(offer),
              ElementsAre(DeviceState{"gpu-aaaa-1", "GPU GPU-AAAA-1 is unhealthy"}));
}

// The kubelet drops a stream with invalid UTF-8, and cuts long messages anywhere.
TEST(HealthStreamTest, MessagesAreShortAndValid) {
  EXPECT_EQ(StatesOf(OneGpu("a\xff\xc3"))[0].problem, "GPU GPU-AAAA-1 is unhealthy: a??");
  std::string euros;
  for (int i = 0; i < 1000; ++i) euros += "\xe2\x82\xac";
  const std::string cut = StatesOf(OneGpu(euros))[0].problem;
  EXPECT_LE(cut.size(), kMaxHealthMessageBytes);
  EXPECT_GT(cut.size(), kMaxHealthMessageBytes - 6);
  EXPECT_TRUE(cut.ends_with("\xac..."));
}

}  // namespace
}  // namespace gpushm::plugin::dra
