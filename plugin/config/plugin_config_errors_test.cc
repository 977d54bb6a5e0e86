// Goal: every kind of mistake is found at its place, explained, and answered with a valid example.
// Method: a table of malformed files with the expected line, column, field and part of the reason.
// The example of every error is parsed.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "plugin/config/plugin_config.h"

namespace gpushm::plugin::config {
namespace {

using yaml::ConfigError;

struct Case {
  std::string text;
  int line;
  int column;
  std::string field;
  std::string reason;
};

std::string Long(size_t n) { return std::string(n, 'a'); }

const std::string kUuid = "GPU-aaaaaaaa-0000-0000-0000-000000000001";

std::vector<Case> YamlCases() {
  return {
      {"- 1\n", 1, 1, "", "is a list, not a map"},
      {"all\n", 1, 1, "", "is text, not a map"},
      {"unit: 1Gi\nunit: 2Gi\n", 2, 1, "", "duplicate key"},
      {"unit: [1Gi\n", 2, 1, "", "not valid YAML"},
      {"unit: 1Gi\n\treserve: 0\n", 2, 1, "", "a tab"},
      {"unit: &a 1Gi\n", 1, 7, "", "anchors are not supported"},
      {"unit: !int 1\n", 1, 7, "", "tags are not supported"},
      {"unit: 1Gi\n---\nunit: 1Gi\n", 2, 1, "", "second YAML document"},
      {"units: 1Gi\n", 1, 1, "units", "nearest is unit"},
      {"gpu: 0\n", 1, 1, "gpu", "nearest is gpus"},
      {"attach_tokens: 4\n", 1, 1, "attach_tokens", "nearest is attach-tokens"},
      {"Kubelet: none\n", 1, 1, "Kubelet", "nearest is kubelet"},
      {"heath: {}\n", 1, 1, "heath", "nearest is health"},
      {"binding: namespace\n", 1, 10, "binding", "is text, not a map"},
      {"binding: {tenancy: pod}\n", 1, 20, "binding.tenancy", "shared"},
      {"binding: {tenancies: shared}\n", 1, 11, "binding.tenancies", "nearest is"},
      {"log.level: debug\n", 1, 1, "log.level", "unknown key"},
  };
}

std::vector<Case> GpuCases() {
  return {
      {"gpus: none\n", 1, 7, "gpus", "must be all, or a list"},
      {"gpus: 0\n", 1, 7, "gpus", "must be all, or a list"},
      {"gpus: []\n", 1, 7, "gpus", "empty list; leave it out for all GPUs"},
      {"gpus:\n", 1, 1, "gpus", "has no value"},
      {"gpus: {0: 1}\n", 1, 7, "gpus", "is a map, not a list"},
      {"gpus: [first]\n", 1, 8, "gpus[0]", "neither a GPU's UUID nor its index"},
      {"gpus: [0, 256]\n", 1, 11, "gpus[1]", "neither"},
      {"gpus: [0, -1]\n", 1, 11, "gpus[1]", "neither"},
      {"gpus: [GPU-12]\n", 1, 8, "gpus[0]", "is not a valid GPU UUID"},
      {"gpus: [0, 00]\n", 1, 11, "gpus[1]", "listed twice"},
      {"gpus: [1g.18gb, 1g.18gb]\n", 1, 17, "gpus[1]", "listed twice"},
      {"gpus:\n- " + kUuid + "\n- " + kUuid + "\n", 3, 3, "gpus[1]", "listed twice"},
      {"gpus: [[0]]\n", 1, 8, "gpus[0]", "is a list, not text"},
      {"gpus: [g.18gb]\n", 1, 8, "gpus[0]", "neither"},
      {"gpus: [1g.gb]\n", 1, 8, "gpus[0]", "neither"},
      {"gpus: [1g.18GB]\n", 1, 8, "gpus[0]", "neither"},
      {"gpus: [1g.18gbme]\n", 1, 8, "gpus[0]", "neither"},
      {"unit: 1GB\n", 1, 7, "unit", "(write 1Gi or 1G)"},
      {"unit: 0\n", 1, 7, "unit", "\"0\" is zero"},
      {"unit: 1Mi\n", 1, 7, "unit", "\"1Mi\" must be a multiple of 2Mi"},
      {"unit: 1G\n", 1, 7, "unit", "must be a multiple of 2Mi"},
      {"unit: {}\n", 1, 7, "unit", "is a map"},
      {"unit:\n", 1, 1, "unit", "has no value"},
      {"reserve: -1Gi\n", 1, 10, "reserve", "is negative"},
      {"reserve: some\n", 1, 10, "reserve", "is not a quantity"},
      {"attach-tokens: 0\n", 1, 16, "attach-tokens", "from 1 to 4096"},
      {"attach-tokens: 4097\n", 1, 16, "attach-tokens", "from 1 to 4096"},
      {"attach-tokens: 1.5\n", 1, 16, "attach-tokens", "from 1 to 4096"},
      {"attach-tokens: many\n", 1, 16, "attach-tokens", "from 1 to 4096"},
      {"attach-tokens: 99999999999999999999\n", 1, 16, "attach-tokens", "from 1 to 4096"},
  };
}

std::vector<Case> NodeCases() {
  return {
      {"allocation: drA\n", 1, 13, "allocation", "nearest is dra"},
      {"allocation: [dra]\n", 1, 13, "allocation", "is a list"},
      {"strategy: devices\n", 1, 1, "strategy", "unknown key"},
      {"kubelet: off\n", 1, 10, "kubelet", "is not one of"},
      {"kubelet: false\n", 1, 10, "kubelet", "is not one of"},
      {"coexist: yes\n", 1, 10, "coexist", "neither true nor false"},
      {"driver-root: run/nvidia\n", 1, 14, "driver-root", "not an absolute path"},
      {"driver-root: Auto\n", 1, 14, "driver-root", "not an absolute path"},
      {"driver-root: /a/../b\n", 1, 14, "driver-root", "contains \"..\""},
      {"host-root: host\n", 1, 12, "host-root", "not an absolute path"},
      {"host-root:\n", 1, 1, "host-root", "has no value"},
      {"kubelet-folder: ''\n", 1, 17, "kubelet-folder", "not an absolute path"},
      {"kubelet-folder: /" + Long(64) + "\n", 1, 17, "kubelet-folder",
       "has 65 bytes; must have at most 64"},
      {"state-folder: /" + Long(64) + "\n", 1, 15, "state-folder",
       "has 65 bytes; must have at most 64"},
      {"state-folder: /run/..\n", 1, 15, "state-folder", "contains \"..\""},
      {"cdi-folder: \"/a\\nb\"\n", 1, 13, "cdi-folder", "line break"},
      {"pod-resources-socket: /" + Long(107) + "\n", 1, 23, "pod-resources-socket",
       "has 108 bytes; must have at most 107"},
  };
}

std::vector<Case> AllocationCases() {
  const std::string none = "kubelet: none\nallocations:\n";
  return {
      {"allocations: [{name: a, memory: 1Gi}]\n", 1, 14, "allocations", "without a kubelet"},
      {"kubelet: none\nallocations: a\n", 2, 14, "allocations", "is text, not a list"},
      {none + "- a\n", 3, 3, "allocations[0]", "is text, not a map"},
      {none + "- {name: a}\n", 3, 3, "allocations[0].memory", "is missing"},
      {none + "- {memory: 1Gi}\n", 3, 3, "allocations[0].name", "is missing"},
      {none + "- {name: A, memory: 1Gi}\n", 3, 10, "allocations[0].name", "is not a DNS label"},
      {none + "- {name: a, memory: 0}\n", 3, 21, "allocations[0].memory", "is zero"},
      {none + "- {name: a, memory: 1GB}\n", 3, 21, "allocations[0].memory", "(write 1Gi or 1G)"},
      {none + "- {name: a, memory: 1Gi}\n- {name: a, memory: 2Gi}\n", 4, 10, "allocations[1].name",
       "used twice"},
      {none + "- {name: a, memory: 1Gi, gpu: x}\n", 3, 31, "allocations[0].gpu", "neither"},
      {none + "- {name: a, memory: 1Gi, gpus: 0}\n", 3, 26, "allocations[0].gpus",
       "nearest is gpu"},
  };
}

std::vector<Case> DraCases() {
  const std::string dra = "allocation: dra\n";
  return {
      {"allocation: both\n", 1, 13, "allocation", "is not one of"},
      {"dra: {api-server: '10.96.0.1:443'}\n", 1, 6, "dra", "is only for allocation: dra"},
      {dra + "dra: {api-server: here}\n", 2, 19, "dra.api-server", "is not host:port"},
      {dra + "dra: {api-server: ':443'}\n", 2, 19, "dra.api-server", "is not host:port"},
      {dra + "dra: {server: a}\n", 2, 7, "dra.server", "nearest is api-server"},
      {dra + "dra: {credentials-folder: x}\n", 2, 27, "dra.credentials-folder", "absolute"},
      {dra + "dra: yes\n", 2, 6, "dra", "not a map"},
      {dra + "kubelet: none\n", 1, 13, "allocation", "kubelet: none"},
      {dra + "binding: {tenancy: namespace}\n", 1, 13, "allocation", "binding.tenancy"},
  };
}

std::vector<Case> HealthCases() {
  return {
      {"health: off\n", 1, 9, "health", "is text, not a map"},
      {"health: {recheck: 5}\n", 1, 10, "health.recheck", "nearest is recheck-ms"},
      {"health: {recheck-ms: 99}\n", 1, 22, "health.recheck-ms", "from 100 to 60000"},
      {"health: {recheck-ms: 5s}\n", 1, 22, "health.recheck-ms", "from 100 to 60000"},
      {"health: {good-probes: 0}\n", 1, 23, "health.good-probes", "from 1 to 100"},
      {"health: {quiet-ms: 1}\n", 1, 20, "health.quiet-ms", "from 1000 to 86400000"},
      {"health: {ignore-xids: all}\n", 1, 23, "health.ignore-xids", "is text, not a list"},
      {"health: {ignore-xids: [0]}\n", 1, 24, "health.ignore-xids[0]", "from 1 to 65535"},
      {"health: {fatal-xids: [79, 79]}\n", 1, 27, "health.fatal-xids[1]", "listed twice"},
      {"health: {fatal-xids: [79, x]}\n", 1, 27, "health.fatal-xids[1]", "from 1 to 65535"},
      {"health: {ignore-xids: [5], fatal-xids: [5]}\n", 1, 40, "health.fatal-xids",
       "also in health.ignore-xids"},
      {"log: debug\n", 1, 6, "log", "is text, not a map"},
      {"log: {level: verbose}\n", 1, 14, "log.level", "is not one of"},
      {"log: {format: xml}\n", 1, 15, "log.format", "is not one of"},
      {"log: {levle: info}\n", 1, 7, "log.levle", "nearest is level"},
  };
}

std::vector<Case> AllCases() {
  std::vector<Case> all;
  for (const auto& cases :
       {YamlCases(), GpuCases(), NodeCases(), AllocationCases(), DraCases(), HealthCases()}) {
    all.insert(all.end(), cases.begin(), cases.end());
  }
  return all;
}

TEST(PluginConfigErrors, EachMistakeIsFoundAtItsPlace) {
  const std::vector<Case> all = AllCases();
  EXPECT_GE(all.size(), 80u);
  for (const Case& c : all) {
    SCOPED_TRACE(c.text.substr(0, 200));
    const auto config = ParsePluginConfigOrErrors(c.text, "plugin.yaml");
    ASSERT_FALSE(config);
    ASSERT_EQ(config.error().size(), 1u) << yaml::ToStatus(config.error(), "").ToString();
    const ConfigError& error = config.error()[0];
    EXPECT_EQ(error.file, "plugin.yaml");
    EXPECT_EQ(error.line, c.line) << error.ToString();
    EXPECT_EQ(error.column, c.column) << error.ToString();
    EXPECT_EQ(error.field, c.field) << error.ToString();
    EXPECT_THAT(error.reason, testing::HasSubstr(c.reason));
    EXPECT_EQ(error.ToString().find('\n'), std::string::npos);
    ASSERT_FALSE(error.example.empty());
    // These are valid only together with the key that they need.
    const std::string needs = error.example.starts_with("allocations") ? "\nkubelet: none\n"
                              : error.example.starts_with("dra:")      ? "\nallocation: dra\n"
                                                                       : "\n";
    const auto example = ParsePluginConfig(error.example + needs, "example");
    EXPECT_TRUE(example) << error.example << "\n" << example.error().ToString();
  }
}

// Goal: one round of corrections is enough.
TEST(PluginConfigErrors, AllErrorsComeAtOnceInTheOrderOfTheFile) {
  const auto config = ParsePluginConfigOrErrors(
      "unit: 1GB\nlog: {level: loud, fromat: json}\ngpus: [x, 0, 0]\nunit: 2Gi\nhealth:\n"
      "  fatal-xids: [a]\n",
      "plugin.yaml");
  ASSERT_FALSE(config);
  std::vector<std::pair<int, int>> places;
  for (const ConfigError& error : config.error()) places.emplace_back(error.line, error.column);
  EXPECT_EQ(places, (std::vector<std::pair<int, int>>{
                        {1, 7}, {2, 14}, {2, 20}, {3, 8}, {3, 14}, {4, 1}, {6, 16}}));
}

TEST(PluginConfigErrors, AMultitudeIsCut) {
  std::string text = "gpus: [";
  for (int i = 0; i < 5000; ++i) text += "x,";
  const auto config = ParsePluginConfigOrErrors(text + "]", "plugin.yaml");
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().size(), yaml::kErrorsKept + 1);
}

}  // namespace
}  // namespace gpushm::plugin::config
