#include "plugin/config/plugin_config.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace gpushm::plugin::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// `log.level: debug` as YAML.
std::string Line(std::string_view key, std::string_view value) {
  const size_t dot = key.find('.');
  if (dot == std::string_view::npos) return Concat(key, ": ", value, "\n");
  return Concat(key.substr(0, dot), ": {", key.substr(dot + 1), ": ", value, "}\n");
}

// The line without which the key is refused.
std::string Needed(std::string_view key) {
  if (key == "allocations") return "kubelet: none\n";
  return key.starts_with("dra.") ? "allocation: dra\n" : "";
}

TEST(PluginConfig, AnEmptyFileIsTheDefaults) {
  for (const char* text : {"", "# nothing\n", "{}\n", "gpus: all\ndriver-root: auto\n"}) {
    const auto config = ParsePluginConfig(text, "plugin.yaml");
    ASSERT_TRUE(config) << config.error().ToString();
    EXPECT_EQ(*config, PluginConfig{}) << text;
  }
}

TEST(PluginConfig, TheTablesDefaultsAreTheDefaults) {
  for (const yaml::KeyInfo& key : PluginKeys()) {
    const auto config = ParsePluginConfig(Line(key.name, key.default_value), "plugin.yaml");
    ASSERT_TRUE(config) << key.name << ": " << config.error().ToString();
    EXPECT_EQ(*config, PluginConfig{}) << key.name;
  }
}

TEST(PluginConfig, TheTablesExamplesParse) {
  for (const yaml::KeyInfo& key : PluginKeys()) {
    std::string text = Line(key.name, key.example);
    text += Needed(key.name);
    const auto config = ParsePluginConfig(text, "plugin.yaml");
    EXPECT_TRUE(config) << text << config.error().ToString();
  }
}

// Goal: no key is documented and accepted, but then ignored.
TEST(PluginConfig, TheTablesExamplesTakeEffect) {
  for (const yaml::KeyInfo& key : PluginKeys()) {
    if (key.example == key.default_value) continue;
    const std::string rest = Needed(key.name);
    const auto without = ParsePluginConfig(rest, "plugin.yaml");
    const auto with = ParsePluginConfig(Line(key.name, key.example) + rest, "plugin.yaml");
    ASSERT_TRUE(with && without) << key.name;
    EXPECT_FALSE(*with == *without) << key.name;
  }
}

TEST(PluginConfig, EveryKeyIsRead) {
  const auto config = ParsePluginConfig(
      "gpus: [GPU-aaaaaaaa-0000-0000-0000-000000000001, 3, 1g.18gb, 1c.2g.35gb, 1g.18gb+me,\n"
      "       MIG-aaaaaaaa-0000-0000-0000-000000000002]\n"
      "unit: 512Mi\nreserve: 0\nattach-tokens: 8\ndriver-root: /\n"
      "host-root: /host\ncoexist: true\nbinding: {tenancy: shared}\nkubelet: none\nkubelet-folder: /a\n"
      "pod-resources-socket: /b/c.sock\ncdi-folder: /etc/cdi\nstate-folder: /d\n"
      "features-folder: /e\n"
      "allocations:\n- {name: demo, memory: 8Gi, gpu: 1}\n- {name: more, memory: 1Gi}\n"
      "health:\n  ignore-xids: [74]\n  fatal-xids: [63, 13]\n  recheck-ms: 100\n"
      "  good-probes: 1\n  quiet-ms: 1000\n"
      "log: {level: error, format: json}\n",
      "plugin.yaml");
  ASSERT_TRUE(config) << config.error().ToString();
  EXPECT_THAT(config->rules.select,
              ElementsAre("GPU-aaaaaaaa-0000-0000-0000-000000000001", "3", "1g.18gb", "1c.2g.35gb",
                          "1g.18gb+me", "MIG-aaaaaaaa-0000-0000-0000-000000000002"));
  EXPECT_EQ(config->rules.unit_bytes, uint64_t{512} << 20);
  EXPECT_EQ(config->rules.reserve_bytes, 0u);
  EXPECT_EQ(config->rules.tokens, 8u);
  EXPECT_EQ(config->driver_root, "/");
  EXPECT_EQ(config->host_root, "/host");
  EXPECT_EQ(config->features_folder, "/e");
  EXPECT_TRUE(config->coexist);
  EXPECT_EQ(config->kubelet, KubeletMode::kNone);
  EXPECT_EQ(config->kubelet_folder, "/a");
  EXPECT_EQ(config->pod_resources_socket, "/b/c.sock");
  EXPECT_EQ(config->cdi_folder, "/etc/cdi");
  EXPECT_EQ(config->state_folder, "/d");
  ASSERT_EQ(config->allocations.size(), 2u);
  EXPECT_EQ(config->allocations[0].name, "demo");
  EXPECT_EQ(config->allocations[0].memory_bytes, uint64_t{8} << 30);
  EXPECT_EQ(config->allocations[0].gpu->index, 1u);
  EXPECT_FALSE(config->allocations[1].gpu);
  EXPECT_EQ(config->health, (inventory::HealthRules{{74}, {63, 13}, 100, 1, 1000}));
  EXPECT_EQ(config->log, (LogConfig{LogLevel::kError, LogFormat::kJson}));
}

TEST(PluginConfig, TheKeysOfDra) {
  const auto config = ParsePluginConfig(
      "allocation: dra\ndra: {api-server: '[fd00::1]:6443', credentials-folder: /e}\n"
      "plugins-folder: /f\nclaims-folder: /g\n",
      "plugin.yaml");
  ASSERT_TRUE(config) << config.error().ToString();
  EXPECT_EQ(config->allocation, Allocation::kDra);
  EXPECT_EQ(config->api_server, "[fd00::1]:6443");
  EXPECT_EQ(config->api_credentials, "/e");
  EXPECT_EQ(config->plugins_folder, "/f");
  EXPECT_EQ(config->claims_folder, "/g");
}

TEST(PluginConfig, ReadsAFile) {
  const std::string path = testing::TempDir() + "gpushm-plugin-config-test.yaml";
  std::ofstream(path) << "log: {level: debug}\n";
  EXPECT_EQ(ReadPluginConfig(path)->log.level, LogLevel::kDebug);
  std::ofstream(path) << "log: {level: loud}\n";
  const auto wrong = ReadPluginConfig(path);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(wrong.error().what(), HasSubstr(path + ":1:14: log.level: \"loud\" is not one of"));
  EXPECT_THAT(wrong.error().remedy(), HasSubstr("docs/reference/plugin-config.md"));
  std::ofstream(path) << std::string(400'000, '#');
  EXPECT_THAT(ReadPluginConfig(path).error().what(), HasSubstr("at most 262144"));
  std::filesystem::remove(path);
  EXPECT_EQ(ReadPluginConfig(path).error().code(), Code::kNotFound);
  EXPECT_EQ(ReadPluginConfig(testing::TempDir()).error().code(), Code::kSystem);
}

}  // namespace
}  // namespace gpushm::plugin::config
