#include "contract/status/status.h"

#include <gtest/gtest.h>

namespace gpushm::status {
namespace {

Node Full() {
  Buffer buffer{.name = "weights", .state = "ready", .transport = "vmm", .creator = "loader"};
  buffer.size_bytes = UINT64_MAX;
  buffer.loaded_bytes = 3;
  buffer.reason = "no file models/a.safetensors";
  buffer.reason_code = "NOT_FOUND";
  buffer.attachments = {{.container = "server", .access = "ro", .count = 2}};
  Pool pool{.allocation = "m1", .name_space = "n", .pod = "p", .gpu_number = 1, .pod_gpus = 2};
  pool.broker = "away";
  pool.buffers = {buffer, {}};
  pool.containers = {{.name = "server", .private_bytes = 7, .private_limit_bytes = 9},
                     {.name = "gpushm"}};
  pool.mps = {.ready = true, .clients = 2, .daemon_restarts = 1, .outside_processes = 3};
  Gpu gpu{.uuid = "GPU-1", .index = 3, .model = "NVIDIA H200"};
  gpu.healthy = true;
  gpu.taken_by = "nvidia.com/gpu";
  gpu.utilization = 0.25;
  gpu.pools = {pool};
  return {.version = "1.2.3",
          .node = "node-a",
          .time_unix_ms = -1,
          .gpus = {gpu, {}},
          .resources = {{.name = "gpushm.io/memory", .registered = true, .devices = 9}}};
}

// The document without the member `name`, which has the value `value`.
std::string Without(std::string json, const std::string& member) {
  const size_t at = json.find(member);
  EXPECT_NE(at, std::string::npos) << member;
  return json.erase(at, member.size());
}

TEST(StatusTest, ComesBackAsItWas) {
  const std::string json = ToJson(Full());
  EXPECT_EQ(json.back(), '\n');
  const auto back = FromJson(json);
  ASSERT_TRUE(back) << back.error().ToString();
  EXPECT_EQ(ToJson(*back), json);
  const Gpu& gpu = back->gpus.at(0);
  EXPECT_EQ(gpu.utilization, 0.25);
  EXPECT_FALSE(gpu.used_bytes);
  EXPECT_EQ(gpu.pools.at(0).gpu_number, 1U);
  EXPECT_EQ(gpu.pools.at(0).pod_gpus, 2U);
  EXPECT_EQ(gpu.pools.at(0).buffers.at(0).size_bytes, UINT64_MAX);
  EXPECT_EQ(gpu.pools.at(0).buffers.at(0).attachments.at(0).access, "ro");
  EXPECT_EQ(gpu.pools.at(0).buffers.at(0).reason, "no file models/a.safetensors");
  EXPECT_FALSE(gpu.pools.at(0).buffers.at(1).reason);
  EXPECT_EQ(gpu.pools.at(0).containers.at(0).private_bytes, 7U);
}

// Goal: today's gpushmctl can read the status of a plugin that is newer than itself.
TEST(StatusTest, ReadsNewerDocuments) {
  std::string json = ToJson(Full());
  json.insert(1, R"("added later":[{}],)");
  const auto read = FromJson(json);
  ASSERT_TRUE(read) << read.error().ToString();
  EXPECT_EQ(ToJson(*read), ToJson(Full()));
}

TEST(StatusTest, RefusesOtherDocuments) {
  const std::string json = ToJson(Full());
  for (const std::string& bad :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"), std::string("7"),
        Without(json, R"("uuid":"GPU-1",)"), Without(json, R"("node":"node-a",)")}) {
    const auto node = FromJson(bad);
    ASSERT_FALSE(node) << bad;
    EXPECT_EQ(node.error().code(), Code::kCorrupt);
  }
  for (const std::string bad : {R"("2")", "2.5", "-1", "17895700000000000000000000000", "4e99"}) {
    std::string wrong = json;
    wrong.replace(wrong.find("\"count\":2"), 9, "\"count\":" + bad);
    EXPECT_FALSE(FromJson(wrong)) << bad;
  }
}

TEST(StatusTest, BytesThatAreNoTextAreReplaced) {
  Node node;
  node.node = "a\xff";
  const auto read = FromJson(ToJson(node));
  ASSERT_TRUE(read) << read.error().ToString();
  EXPECT_EQ(read->node, "a\xef\xbf\xbd");
}

}  // namespace
}  // namespace gpushm::status
