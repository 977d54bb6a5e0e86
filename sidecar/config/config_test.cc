#include "sidecar/config/config.h"

#include <gtest/gtest.h>

namespace gpushm::config {
namespace {

TEST(ConfigTest, ReadsAPod) {
  const auto pod = ParseAnnotations(
      {{"buffers.gpushm.io/weights", "8Gi"},
       {"buffers.gpushm.io/frames", "size: 512Mi\ngenerations: 2\nwriters: [decoder]\n"}},
      {.containers = std::vector<std::string>{"decoder", "model"}});
  ASSERT_TRUE(pod) << pod.error().ToString();
  EXPECT_EQ(pod->buffers.size(), 2U);
}

TEST(ConfigTest, SaysWhereAndWhy) {
  const auto config = ParseBrokerConfigOrErrors(
      "annotations:\n  buffers.gpushm.io/weights:\n    size: 8GB\n", "annotations.yaml");
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error()[0].ToString(),
            "annotations.yaml:3:11: buffers.gpushm.io/weights: size: \"8GB\" is not a quantity "
            "(write 8Gi or 8G); example: buffers.gpushm.io/weights: 8Gi");
}

}  // namespace
}  // namespace gpushm::config
