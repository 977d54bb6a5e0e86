// Goal: the broker's file is read, and every kind of mistake in it is found at its place,
// explained, and answered with a correct example. Method: a table of malformed files. Each case
// gives the line, the column, the field and a part of the expected reason. The example of every
// error must parse.
#include "sidecar/broker/broker_config.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "contract/protocol/messages.h"

namespace gpushm::broker {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(BrokerConfigTest, ReadsTheBrokersFile) {
  const auto config = ParseBrokerConfig(
      "\xEF\xBB\xBF# by hand\r\n"
      "annotations:\r\n"
      "  buffers.gpushm.io/weights: {size: 3Mi, generations: 2, file: /models/w.bin}\r\n"
      "containers: [decoder, model]\r\n"
      "gpu: GPU-8e7a0d7c-5c0e-4d0a-9d3c-8f6f1f3a2b11\r\n"
      "folder: /tmp/x\r\n"
      "pod-uid: 0b8c0f6e\r\n"
      "host-ipc: true\r\n"
      "log: {level: warning, format: json}\r\n",
      "broker.yaml");
  ASSERT_TRUE(config) << config.error().ToString();
  EXPECT_EQ(config->pool_bytes, 8 * kMiB);
  EXPECT_FALSE(config->pool_given);
  EXPECT_EQ(config->gpus.at(0).uuid, "GPU-8e7a0d7c-5c0e-4d0a-9d3c-8f6f1f3a2b11");
  EXPECT_EQ(config->folder, "/tmp/x");
  EXPECT_EQ(config->pod_uid, "0b8c0f6e");
  EXPECT_TRUE(config->host_ipc);
  EXPECT_EQ(config->log, (LogConfig{LogLevel::kWarning, LogFormat::kJson}));
  EXPECT_EQ(config->pod.buffers[0].FileVolume(), "");
  EXPECT_EQ(config->pod.buffers[0].FilePath(), "/models/w.bin");

  const auto empty = ParseBrokerConfig("", "broker.yaml");
  ASSERT_TRUE(empty);
  EXPECT_EQ(*empty, BrokerConfig{});
  EXPECT_EQ(empty->folder, protocol::kDefaultFolder);
  EXPECT_EQ(ParseBrokerConfig("gpu: 3\npool: 4Gi", "x")->gpus.at(0).index, 3U);
}

TEST(BrokerConfigTest, NamesAsManyGpusAsThePodHas) {
  const std::string pod =
      "annotations: {gpushm.io/gpus: 2, buffers.gpushm.io/w: {size: 2Mi, gpu: each}, "
      "buffers.gpushm.io/x: {size: 4Mi, gpu: 1}}\n";
  const auto all = ParseBrokerConfig(pod, "x");
  ASSERT_TRUE(all) << all.error().ToString();
  EXPECT_EQ(all->pool_bytes, 6 * kMiB) << "what the fullest GPU needs";
  EXPECT_TRUE(all->gpus.empty());
  EXPECT_TRUE(CheckGpus(*all)) << "all that are visible";
  const auto two =
      ParseBrokerConfig(pod + "gpu: [1, GPU-8e7a0d7c-5c0e-4d0a-9d3c-8f6f1f3a2b11]\n", "x");
  ASSERT_TRUE(two) << two.error().ToString();
  EXPECT_TRUE(CheckGpus(*two));
  EXPECT_EQ(two->gpus.at(0).index, 1U);
  EXPECT_EQ(two->gpus.at(1).uuid, "GPU-8e7a0d7c-5c0e-4d0a-9d3c-8f6f1f3a2b11");
  for (const char* const gpu : {"gpu: 0\n", "gpu: [0, 1, 2]\n"}) {
    const auto checked = CheckGpus(*ParseBrokerConfig(pod + gpu, "x"));
    ASSERT_FALSE(checked) << gpu;
    EXPECT_NE(checked.error().ToString().find("gpushm.io/gpus is 2"), std::string::npos);
  }
}

struct Case {
  std::string text;
  int line;
  int column;
  std::string field;
  std::string reason;
};

std::string Long(size_t n, char c = 'a') { return std::string(n, c); }

std::vector<Case> FileCases() {
  const std::string a = "annotations:\n  ";
  return {
      {"annotations: {buffers.gpushm.io/w: 1Gi, signals.gpushm.io/w: ''}\n", 1, 41, "",
       "a buffer already has this name"},
      {a + "buffers.gpushm.io/weights:\n    size: 8GB\n", 3, 11, "size", "(write 8Gi or 8G)"},
      {a + "buffers.gpushm.io/weights: 8GB\n", 2, 30, "size", "(write 8Gi or 8G)"},
      {a + "buffers.gpushm.io/weights: '8GB'\n", 2, 31, "size", "(write 8Gi or 8G)"},
      {a + "buffers.gpushm.io/weights: \"{size: 8GB}\"\n", 2, 38, "size", "write 8Gi"},
      {a + "buffers.gpushm.io/w: |\n    size: 1Gi\n    loads: x\n", 4, 12, "loads", "neither"},
      {a + "buffers.gpushm.io/w: |-\n\n    size: x\n", 4, 11, "size", "is not a quantity"},
      {a + "buffers.gpushm.io/w: >\n    {size: 1Gi,\n    loads: x}\n", 2, 24, "loads", "neither"},
      {a + "buffers.gpushm.io/w:\n", 2, 3, "size", "no value"},
      {a + "buffers.gpushm.io/W: 1Gi\n", 2, 3, "", "not a valid buffer name"},
      {a + "buffer.gpushm.io/w: 1Gi\n", 2, 3, "", "nearest is buffers.gpushm.io/w"},
      {a + "buffers.gpushm.io/w: 1Gi\n  buffers.gpushm.io/w: 2Gi\n", 3, 3, "", "duplicate key"},
      {"annotations: [a]\n", 1, 14, "annotations", "is a list"},
      {"annotations:\n", 1, 1, "annotations", "is nothing"},
      {"anotations: {}\n", 1, 1, "anotations", "nearest is annotations"},
      {"- 1\n", 1, 1, "", "is a list, not a map"},
      {"8Gi\n", 1, 1, "", "is text, not a map"},
      {"containers: decoder\n", 1, 13, "containers", "is text, not a list"},
      {"containers: []\n", 1, 13, "containers", "empty list"},
      {"containers: [a, a]\n", 1, 17, "containers[1]", "listed twice"},
      {"containers: [a, B]\n", 1, 17, "containers[1]", "not a valid container name"},
      {"containers: [[a]]\n", 1, 14, "containers[0]", "is a list"},
      {"containers: [a]\n" + a + "private.gpushm.io/b: 1Gi\n", 3, 3, "", "no container \"b\""},
      {"pool: lots\n", 1, 7, "pool", "is not a quantity"},
      {"pool: 0\n", 1, 7, "pool", "\"0\" is zero"},
      {"pool: [1Gi]\n", 1, 7, "pool", "is a list"},
      {"pool: 1Gi\n" + a + "buffers.gpushm.io/w: 2Gi\n", 1, 7, "pool", "less than the 2Gi"},
      {"gpu: first\n", 1, 6, "gpu", "neither a GPU's UUID nor its index"},
      {"gpu: 256\n", 1, 6, "gpu", "neither"},
      {"gpu: -1\n", 1, 6, "gpu", "neither"},
      {"gpu: GPU-123\n", 1, 6, "gpu", "not a valid GPU UUID"},
      {"gpu: {index: 0}\n", 1, 6, "gpu", "is a map"},
      {"gpu: [0, x]\n", 1, 10, "gpu[1]", "neither"},
      {"gpu: []\n", 1, 6, "gpu", "empty"},
      {"pool: 2Mi\n" + a + "gpushm.io/gpus: 2\n  buffers.gpushm.io/w: {size: 4Mi, gpu: 1}\n", 1, 7,
       "pool", "less than the 4Mi that the annotations need in total on GPU 1"},
      {"folder: run/gpushm\n", 1, 9, "folder", "not an absolute path"},
      {"folder: /" + Long(200) + "\n", 1, 9, "folder", "201 bytes; must have at most 107"},
      {"folder:\n", 1, 1, "folder", "no value"},
      {"pod-uid: ../../etc\n", 1, 10, "pod-uid", "not a valid pod UID"},
      {"pod-uid: ''\n", 1, 10, "pod-uid", "not a valid pod UID"},
      {"pod_uid: a\n", 1, 1, "pod_uid", "nearest is pod-uid"},
      {"host-ipc: on\n", 1, 11, "host-ipc", "neither true nor false"},
      {"host-ipc: false\n" + a + "gpushm.io/host-ipc: 'true'\n", 1, 11, "host-ipc", "contradicts"},
      {"log: debug\n", 1, 6, "log", "is text, not a map"},
      {"log: {level: verbose}\n", 1, 14, "log.level", "is not one of"},
      {"log: {level: [info]}\n", 1, 14, "log.level", "is a list"},
      {"log:\n  format: xml\n", 2, 11, "log.format", "is not one of text or json"},
      {"log: {levle: info}\n", 1, 7, "log.levle", "nearest is level"},
      {"pool: 1Gi\npool: 2Gi\n", 2, 1, "", "duplicate key"},
      {"pool: 1Gi\n\tgpu: 0\n", 2, 1, "", "a tab"},
      {"pool: [1Gi\n", 2, 1, "", "not valid YAML"},
  };
}

TEST(BrokerConfigTest, EachMistakeIsFoundAtItsPlaceWithAnExampleThatIsRight) {
  for (const Case& c : FileCases()) {
    SCOPED_TRACE(c.text.substr(0, 200));
    const auto config = ParseBrokerConfigOrErrors(c.text, "broker.yaml");
    ASSERT_FALSE(config);
    const std::vector<yaml::ConfigError>& errors = config.error();
    ASSERT_EQ(errors.size(), 1U) << yaml::ToStatus(errors, "").ToString();
    const yaml::ConfigError& error = errors[0];
    EXPECT_EQ(error.line, c.line) << error.ToString();
    EXPECT_EQ(error.column, c.column) << error.ToString();
    EXPECT_EQ(error.field, c.field) << error.ToString();
    EXPECT_NE(error.reason.find(c.reason), std::string::npos) << error.ToString();
    EXPECT_EQ(error.file, "broker.yaml");
    EXPECT_EQ(error.ToString().find('\n'), std::string::npos);
    if (error.annotation.empty()) {
      const auto example = ParseBrokerConfig(error.example, "example");
      EXPECT_TRUE(example) << error.example << "\n" << example.error().ToString();
    } else {
      const auto example = annotations::ParseBuffersEnvironment(error.example);
      EXPECT_TRUE(example) << error.example << "\n" << example.error().ToString();
    }
  }
}

// Goal: no key is documented and accepted but then ignored. Method: the table's example of a key
// must change the result.
TEST(BrokerConfigTest, EveryExampleOfTheTableTakesEffect) {
  for (const yaml::KeyInfo& key : BrokerKeys()) {
    const size_t dot = key.name.find('.');
    const std::string name(key.name.substr(0, dot));
    const std::string inner =
        dot == std::string_view::npos
            ? std::string(key.example)
            : "{" + std::string(key.name.substr(dot + 1)) + ": " + std::string(key.example) + "}";
    const auto config = ParseBrokerConfig(name + ": " + inner, "x");
    ASSERT_TRUE(config) << config.error().ToString();
    if (key.example != key.default_value) {
      EXPECT_FALSE(*config == BrokerConfig{}) << name;
    }
  }
}

// Goal: one round of corrections is enough.
TEST(BrokerConfigTest, AllErrorsComeAtOnceInTheOrderOfTheFile) {
  const auto config = ParseBrokerConfigOrErrors(
      "poool: 1Gi\n"
      "annotations:\n"
      "  buffers.gpushm.io/b: {size: 8GB, access: rw, writers: [x, X]}\n"
      "  gpushm.io/inject: never\n"
      "gpu: first\n"
      "gpu: second\n",
      "broker.yaml");
  ASSERT_FALSE(config);
  std::vector<std::pair<int, int>> places;
  for (const yaml::ConfigError& error : config.error())
    places.emplace_back(error.line, error.column);
  EXPECT_EQ(places, (std::vector<std::pair<int, int>>{
                        {1, 1}, {3, 31}, {3, 44}, {3, 61}, {4, 21}, {5, 6}, {6, 1}}));
  const Status status = yaml::ToStatus(config.error(), "");
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(std::ranges::count(status.what(), '|'), 6);
}

}  // namespace
}  // namespace gpushm::broker
