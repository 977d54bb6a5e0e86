// Goal: every kind of mistake is found at its place, explained, and answered with a correct
// example. Method: a table of malformed configurations. Each case gives the line, the column, the
// field and a part of the expected reason. The example of every error must parse, also when it
// replaces the wrong text in the configuration.
#include <gtest/gtest.h>

#include <algorithm>

#include "contract/annotations/annotations.h"
#include "contract/annotations/keys.h"
#include "contract/limits.h"
#include "platform/base/testing/must.h"
#include "platform/yaml/yaml_tree.h"

namespace gpushm::annotations {
namespace {

using ::gpushm::testing::Must;

const ParseOptions kPod{.containers = std::vector<std::string>{"decoder", "model", "sink"}};

struct Case {
  std::string key;  // An annotation of a pod.
  std::string text;
  int line;
  int column;
  std::string field;
  std::string reason;
  std::string gpus{};  // What the pod says as gpushm.io/gpus; empty if nothing.
};

std::string Long(size_t n, char c = 'a') { return std::string(n, c); }

const std::string kB = "buffers.gpushm.io/weights";

std::vector<Case> QuantityCases() {
  std::vector<Case> cases;
  const auto add = [&](std::string text, std::string reason) {
    cases.push_back({kB, text, 1, 1, "size", reason});
    cases.push_back({kB, "{size: " + text + "}", 1, 8, "size", reason});
  };
  add("8GB", "(write 8Gi or 8G)");
  add("8 Gi", "(write 8Gi or 8G)");
  add("1.5gb", "(write 1.5Gi or 1.5G)");
  add("8gi", "(write 8Gi or 8G)");
  add("8KI", "(write 8Ki or 8k)");
  add("8K", "(write 8Ki or 8k)");
  add("512MiB", "(write 512Mi or 512M)");
  add("100B", "(write 100)");
  add("Gi", "is not a quantity");
  add("eight", "is not a quantity");
  add("0x10", "is not a quantity");
  add("1,5Gi", "is not a quantity");
  add("1.5.2Gi", "is not a quantity");
  add("--5", "is not a quantity");
  add("1e", "is not a quantity");
  add("1e3Gi", "is not a quantity");
  add("1e3.5", "is not a quantity");
  add("0", "is zero");
  add("0Gi", "is zero");
  add("-1Gi", "is negative");
  add("-0", "is negative");
  add("0.1", "whole number of bytes");
  add("1.0001Ki", "whole number of bytes");
  add("1e-1", "whole number of bytes");
  add("400m", "fractions of a byte");
  add("5u", "fractions of a byte");
  add("65Ti", "at most 64Ti");
  add("1Ei", "at most 64Ti");
  add("1e99999999999", "at most 64Ti");
  add("18446744073709551616", "at most 64Ti");
  add("99999999999999999999999999999999999999", "at most 64Ti");
  // A comma or a brace ends a value inside a flow map.
  std::erase_if(cases, [](const Case& c) { return c.text == "{size: 1,5Gi}"; });
  return cases;
}

std::vector<Case> MapCases() {
  return {
      {kB, "", 1, 1, "size", "no value"},
      {kB, "# nothing", 1, 1, "size", "no value"},
      {kB, "~", 1, 1, "size", "no value"},
      {kB, "[8Gi]", 1, 1, "", "is a list"},
      {kB, "{}", 1, 1, "size", "is missing"},
      {kB, "{loads: true}", 1, 1, "size", "is missing"},
      {kB, "{size: }", 1, 2, "size", "no value"},
      {kB, "{size: [1Gi]}", 1, 8, "size", "is a list"},
      {kB, "{size: {a: 1Gi}}", 1, 8, "size", "is a map"},
      {kB, "{size: 1Gi, szie: 2Gi}", 1, 13, "szie", "nearest is size"},
      {kB, "{size: 1Gi, writer: [model]}", 1, 13, "writer", "nearest is writers"},
      {kB, "{size: 1Gi, on_writer_exit: keep}", 1, 13, "on_writer_exit",
       "nearest is on-writer-exit"},
      {kB, "{size: 1Gi, Access: one-writer}", 1, 13, "Access", "nearest is access"},
      {kB, "{size: 1Gi, <<: {loads: true}}", 1, 13, "<<", "unknown key"},
      {kB, "{size: 1Gi, size: 2Gi}", 1, 13, "", "duplicate key"},
      {kB, "size: 1Gi\nloads: true\nsize: 2Gi\n", 3, 1, "", "duplicate key"},
      {kB, "{size: 1Gi, generations: 0}", 1, 26, "generations", "from 1 to 16"},
      {kB, "{size: 1Gi, generations: 17}", 1, 26, "generations", "from 1 to 16"},
      {kB, "{size: 1Gi, generations: two}", 1, 26, "generations", "from 1 to 16"},
      {kB, "{size: 1Gi, generations: 1.5}", 1, 26, "generations", "from 1 to 16"},
      {kB, "{size: 1Gi, generations: -1}", 1, 26, "generations", "from 1 to 16"},
      {kB, "{size: 1Gi, generations: 4294967297}", 1, 26, "generations", "from 1 to 16"},
      {kB, "{size: 1Gi, generations: [2]}", 1, 26, "generations", "is a list"},
      {kB, "size: 1Gi\ngenerations:\n", 2, 1, "generations", "no value"},
      {kB, "size: 1Gi\naccess: one_writer\n", 2, 9, "access", "nearest is one-writer"},
      {kB, "{size: 1Gi, access: rw}", 1, 21, "access", "many-writers, one-writer or read-only"},
      {kB, "{size: 1Gi, access: [one-writer]}", 1, 21, "access", "is a list"},
      {kB, "{size: 1Gi, access: read-only}", 1, 21, "access", "without file"},
      {kB, "{size: 1Gi, access: read-only, loads: true}", 1, 21, "access",
       "name that container in writers"},
      {kB, "{size: 1Gi, access: read-only, file: m/w, writers: [model]}", 1, 52, "writers",
       "a read-only buffer has no writers"},
      {kB, "{size: 1Gi, access: read-only, file: m/w, on-writer-exit: keep}", 1, 59,
       "on-writer-exit", "a read-only buffer has no writers"},
      {kB, "{size: 1Gi, on-writer-exit: keeep}", 1, 29, "on-writer-exit", "nearest is keep"},
      {kB, "{size: 1Gi, on-writer-exit: }", 1, 13, "on-writer-exit", "no value"},
      {kB, "{size: 1Gi, writers: model}", 1, 22, "writers", "is text, not a list"},
      {kB, "{size: 1Gi, writers: []}", 1, 22, "writers", "empty list"},
      {kB, "{size: 1Gi, writers: }", 1, 13, "writers", "no value"},
      {kB, "{size: 1Gi, writers: {model: 1}}", 1, 22, "writers", "is a map"},
      {kB, "{size: 1Gi, writers: [modle]}", 1, 23, "writers[0]", "nearest is \"model\""},
      {kB, "{size: 1Gi, writers: [model, model]}", 1, 30, "writers[1]", "listed twice"},
      {kB, "{size: 1Gi, writers: [model, [sink]]}", 1, 30, "writers[1]", "is a list"},
      {kB, "{size: 1Gi, writers: [Model]}", 1, 23, "writers[0]", "not a valid container name"},
      {kB, "size: 1Gi\nwriters:\n- model\n-\n", 5, 1, "writers[1]", "no value"},
      {kB, "size: 1Gi\ncontainers:\n- model\n- snik\n", 4, 3, "containers[1]",
       "nearest is \"sink\""},
      {kB, "{size: 1Gi, containers: []}", 1, 25, "containers", "empty list"},
      {kB, "{size: 1Gi, containers: [model], writers: [model, sink]}", 1, 51, "writers[1]",
       "not listed in containers"},
      {kB, "{size: 1Gi, file: weights.bin}", 1, 19, "file", "begin with the name of a volume"},
      {kB, "{size: 1Gi, file: /models/weights.bin}", 1, 19, "file", "is an absolute path"},
      {kB, "{size: 1Gi, file: models//}", 1, 19, "file", "does not name a file"},
      {kB, "{size: 1Gi, file: models/a//}", 1, 19, "file", "has an empty part"},
      {kB, "{size: 1Gi, file: models/../etc/shadow}", 1, 19, "file", "'..'"},
      {kB, "{size: 1Gi, file: models/./a}", 1, 19, "file", "'.'"},
      {kB, "{size: 1Gi, file: models//a}", 1, 19, "file", "empty part"},
      {kB, "{size: 1Gi, file: Models/a}", 1, 19, "file", "begin with the name of a volume"},
      {kB, "{size: 1Gi, file: \"models/a\\nb\"}", 1, 19, "file", "line break"},
      {kB, "{size: 1Gi, file: models/" + Long(1100) + "}", 1, 19, "file",
       "has 1107 bytes; must have at most 1024"},
      {kB, "{size: 1Gi, file: }", 1, 13, "file", "no value"},
      {kB, "{size: 1Gi, bytes: 0, file: m/w}", 1, 20, "bytes", "is zero"},
      {kB, "{size: 1Gi, bytes: 5}", 1, 20, "bytes", "there is no file"},
      {kB, "{size: 1Gi, digest: g1:12, file: m/w}", 1, 21, "digest", "is not g1: and 32"},
      {kB, "{size: 1Gi, digest: g1:" + Long(32) + "}", 1, 21, "digest", "there is no file"},
      {kB, "{size: 1Gi, gpu: each, bytes: 5, file: \"m/{gpu}\"}", 1, 31, "bytes", "several files"},
      {kB, "{size: 1Gi, loads: yes}", 1, 20, "loads", "neither true nor false"},
      {kB, "{size: 1Gi, loads: True}", 1, 20, "loads", "neither true nor false"},
      {kB, "{size: 1Gi, loads: {}}", 1, 20, "loads", "is a map"},
  };
}

std::vector<Case> GpuCases() {
  const std::string long_key = "buffers.gpushm.io/" + Long(62);
  return {
      {kB, "{size: 1Gi, gpu: 1}", 1, 18, "gpu", "is 1, but the pod has 1 GPU, with the number 0"},
      {kB, "{size: 1Gi, gpu: 2}", 1, 18, "gpu",
       "is 2, but the pod has 2 GPUs, numbered from 0 to 1", "2"},
      {kB, "size: 1Gi\ngpu: 15\n", 2, 6, "gpu", "is 15, but the pod has 15 GPUs", "15"},
      {kB, "{size: 1Gi, gpu: 16}", 1, 18, "gpu", "neither a number from 0 to 15 nor each"},
      {kB, "{size: 1Gi, gpu: -1}", 1, 18, "gpu", "neither a number", "2"},
      {kB, "{size: 1Gi, gpu: Each}", 1, 18, "gpu", "\"Each\" is neither", "2"},
      {kB, "{size: 1Gi, gpu: 99999999999}", 1, 18, "gpu", "neither a number"},
      {kB, "{size: 1Gi, gpu: [0, 1]}", 1, 18, "gpu", "is a list", "2"},
      {kB, "{size: 1Gi, gpu: }", 1, 13, "gpu", "no value"},
      {kB, "{size: 1Gi, gpus: 1}", 1, 13, "gpus", "nearest is gpu"},
      {long_key, "{size: 1Gi, gpus: 1}", 1, 13, "gpus", "nearest is gpu"},
      {long_key, "{size: 1Gi, gpu: each}", 1, 18, "gpu", "has 64 characters; must have at most 63"},
      {"buffers.gpushm.io/" + Long(61), "{size: 1Gi, gpu: each}", 1, 18, "gpu",
       "has 64 characters; must have at most 63", "11"},
      {kB, "{size: 1Gi, file: \"m/{gpu}.bin\"}", 1, 19, "file", "only in a buffer with gpu: each",
       "2"},
      {kB, "{size: 1Gi, gpu: 1, file: \"m/{gpu}.bin\"}", 1, 27, "file", "only in a buffer", "2"},
      {kB, "{size: 1Gi, gpu: all, file: \"m/{gpu}.bin\"}", 1, 18, "gpu", "neither a number", "2"},
      {kB, "{size: 1Gi, gpu: each, file: \"m{gpu}/a.bin\"}", 1, 30, "file",
       "begin with the name of a volume", "2"},
      {long_key, "{size: 1Gi, file: \"m/{gpu}.bin\"}", 1, 19, "file", "only in a buffer"},
      {kB, "{size: 1Gi, gpu: each, file: m/{gpu}.bin}", 1, 32, "",
       "{gpu} needs quotes in a map that is written in braces", "2"},
      {"gpushm.io/gpus", "0", 1, 1, "", "not a number from 1 to 16"},
      {"gpushm.io/gpus", "17", 1, 1, "", "not a number from 1 to 16"},
      {"gpushm.io/gpus", "two", 1, 1, "", "not a number from 1 to 16"},
      {"gpushm.io/gpus", "2.0", 1, 1, "", "not a number from 1 to 16"},
      {"gpushm.io/gpus", "", 1, 1, "", "no value"},
      {"gpushm.io/gpus", "[2]", 1, 1, "", "is a list"},
      {"gpushm.io/gpu", "2", 0, 0, "", "nearest is gpushm.io/gpus"},
      {"gpushm.io/topology", "nvlink", 1, 1, "", "needs at least two GPUs, and the pod has 1"},
      {"gpushm.io/topology", "nvlink", 1, 1, "", "needs at least two GPUs", "1"},
      {"gpushm.io/topology", "pcie", 1, 1, "", "\"pcie\" is not nvlink", "2"},
      {"gpushm.io/topology", "NVLink", 1, 1, "", "is not nvlink, which is the only value", "2"},
      {"gpushm.io/topology", "", 1, 1, "", "no value", "2"},
      {"gpushm.io/role", "owner", 1, 1, "", "needs the claim that it shares"},
      {"gpushm.io/role", "reader", 1, 1, "", "\"reader\" is not one of user, owner or mps"},
      {"gpushm.io/claim", "My Claim", 1, 1, "", "is not the name of a Kubernetes object"},
      {"gpushm.io/claim", "", 1, 1, "", "no value"},
      {"gpushm.io/allocation", "claim", 1, 1, "", "\"claim\" is not one of device-plugin or dra"},
      {"gpushm.io/topolgy", "nvlink", 0, 0, "", "nearest is gpushm.io/topology", "2"},
  };
}

std::vector<Case> YamlCases() {
  return {
      {kB, "{size: 1Gi", 1, 1, "", "not valid YAML"},
      {kB, "size: 1Gi\n\tloads: true", 2, 1, "", "a tab in the indentation"},
      {kB, std::string("8G\0i", 4), 1, 3, "", "a NUL byte"},
      {kB, "8Gi\x04", 1, 4, "", "a control character"},
      {kB, "8Gi\x7f", 1, 4, "", "a control character"},
      {kB, "8\rGi", 1, 2, "", "carriage return"},
      {kB, "size: 1Gi\nloads: \xff", 2, 8, "", "UTF-8"},
      {kB, "\xc0\xaf", 1, 1, "", "UTF-8"},
      {kB, "\xed\xa0\x80", 1, 1, "", "UTF-8"},
      {kB, "8Gi \xe2\x82", 1, 5, "", "UTF-8"},
      {kB, "&a 8Gi", 1, 1, "", "anchors"},
      {kB, "&a {size: 8Gi}", 1, 1, "", "anchors"},
      {kB, "{size: &a 8Gi}", 1, 8, "", "anchors"},
      {kB, "{size: *a}", 1, 8, "", ""},
      {kB, "!!str 8Gi", 1, 1, "", "tags"},
      {kB, "{size: !!int 8}", 1, 8, "", "tags"},
      {kB, "8Gi\n---\n9Gi\n", 2, 1, "", "second YAML document"},
      {kB, "{? [size] : 1}", 1, 4, "", "must be text"},
      {kB, "{: 1}", 1, 2, "", "must be text"},
      // yaml-cpp sees a map in each list whose item could be a key.
      {kB, Long(20, '['), 1, 7, "", "nested maps and lists"},
      {kB, Long(100000, '['), 1, 7, "", "nested maps and lists"},
      {kB, Long(300000), 1, 1, "", "at most 262144"},
      {kB, "\"8Gi", 1, 5, "", "not valid YAML"},
      {kB, "size: 1Gi\n loads: true\n", 2, 7, "", "not valid YAML"},
      {kB, "@8Gi", 1, 1, "", "not valid YAML"},
  };
}

std::vector<Case> KeyCases() {
  return {
      {"buffer.gpushm.io/weights", "8Gi", 0, 0, "", "nearest is buffers.gpushm.io/weights"},
      {"Buffers.GPUSHM.io/weights", "8Gi", 0, 0, "", "nearest is buffers.gpushm.io/weights"},
      {"bufers.gpushm.io/Weights", "8Gi", 0, 0, "", "nearest is buffers.gpushm.io/weights"},
      {"privat.gpushm.io/model", "1Gi", 0, 0, "", "nearest is private.gpushm.io/model"},
      {"gpushm.io/pool_extra", "1Gi", 0, 0, "", "nearest is gpushm.io/pool-extra"},
      {"gpushm.io/hostipc", "true", 0, 0, "", "nearest is gpushm.io/host-ipc"},
      {"gpushm.io/injected", "true", 0, 0, "", "nearest is gpushm.io/inject"},
      {"gpushm.io/", "8Gi", 0, 0, "", "unknown key"},
      {"gpushm.io", "8Gi", 0, 0, "", "unknown key"},
      {"sidecar.gpushm.io/cpus", "1", 0, 0, "", "nearest is sidecar.gpushm.io/cpu"},
      {"sidecar.gpushm.io/", "1", 0, 0, "", "unknown key"},
      {"x.y.gpushm.io/a", "1", 0, 0, "", "unknown key"},
      {"gpushm.io/" + Long(5000), "1", 0, 0, "", "unknown key"},
      {"buffers.gpushm.io/", "8Gi", 0, 0, "", "not a valid buffer name"},
      {"buffers.gpushm.io/-a", "8Gi", 0, 0, "", "not a valid buffer name"},
      {"buffers.gpushm.io/a_b", "8Gi", 0, 0, "", "not a valid buffer name"},
      {"buffers.gpushm.io/a.b", "8Gi", 0, 0, "", "not a valid buffer name"},
      {"buffers.gpushm.io/a/b", "8Gi", 0, 0, "", "not a valid buffer name"},
      {"buffers.gpushm.io/" + Long(64), "8Gi", 0, 0, "", "not a valid buffer name"},
      {"private.gpushm.io/modle", "1Gi", 0, 0, "", "nearest is \"model\""},
      {"private.gpushm.io/A", "1Gi", 0, 0, "", "not a valid container name"},
      {"private.gpushm.io/model", "1GB", 1, 1, "", "(write 1Gi or 1G)"},
      {"private.gpushm.io/model", "{size: 1Gi}", 1, 1, "", "is a map"},
      {"private.gpushm.io/model", "", 1, 1, "", "no value"},
      {"gpushm.io/pool-extra", "-1", 1, 1, "", "is negative"},
      {"gpushm.io/pool-extra", "[", 1, 1, "", "not valid YAML"},
      {"gpushm.io/host-ipc", "yes", 1, 1, "", "neither true nor false"},
      {"gpushm.io/host-ipc", "1", 1, 1, "", "neither true nor false"},
      {"gpushm.io/inject", "False", 1, 1, "", "neither true nor false"},
      {"gpushm.io/inject", "[false]", 1, 1, "", "is a list"},
      {"sidecar.gpushm.io/cpu", "0", 1, 1, "", "\"0\" is zero"},
      {"sidecar.gpushm.io/cpu", "0.0001", 1, 1, "", "thousandth"},
      {"sidecar.gpushm.io/cpu", "5000", 1, 1, "", "at most 1000"},
      {"sidecar.gpushm.io/cpu", "half", 1, 1, "", "write, for example, 250m"},
      {"sidecar.gpushm.io/memory", "0", 1, 1, "", "is zero"},
      {"loader.gpushm.io/cpu", "0", 1, 1, "", "\"0\" is zero"},
      {"loader.gpushm.io/memory", "0", 1, 1, "", "is zero"},
      {"sidecar.gpushm.io/memory", "64MB", 1, 1, "", "(write 64Mi or 64M)"},
  };
}

std::vector<Case> SignalCases() {
  const std::string key = "signals.gpushm.io/ready";
  return {
      {key, "8Gi", 1, 1, "", "is text; write nothing"},
      {key, "[model]", 1, 1, "", "is a list; write nothing"},
      {key, "{writer: [model]}", 1, 2, "writer", "nearest is writers"},
      {key, "{size: 8Gi}", 1, 2, "size", "unknown key"},
      {key, "{writers: model}", 1, 11, "writers", "is text, not a list"},
      {key, "{writers: []}", 1, 11, "writers", "empty list"},
      {key, "{containers: [modle]}", 1, 15, "containers[0]", "nearest is \"model\""},
      {key, "{writers: [sink], containers: [model]}", 1, 12, "writers[0]",
       "not listed in containers"},
      {"signals.gpushm.io/", "", 0, 0, "", "not a valid signal name"},
      {"signals.gpushm.io/Ready", "", 0, 0, "", "not a valid signal name"},
      {"signal.gpushm.io/ready", "", 0, 0, "", "nearest is signals.gpushm.io/ready"},
  };
}

std::vector<Case> AllCases() {
  std::vector<Case> all;
  for (const auto& cases :
       {QuantityCases(), MapCases(), SignalCases(), GpuCases(), YamlCases(), KeyCases()}) {
    all.insert(all.end(), cases.begin(), cases.end());
  }
  return all;
}

std::vector<yaml::ConfigError> Errors(const Case& c) {
  Annotations annotations = {{c.key, c.text}};
  if (!c.gpus.empty()) annotations["gpushm.io/gpus"] = c.gpus;
  const auto pod = ParseAnnotationsOrErrors(annotations, kPod);
  return pod ? std::vector<yaml::ConfigError>{} : pod.error();
}

// Uses the example as an annotation of the case's pod.
void ExpectAnnotationExampleParses(const Case& c, const yaml::ConfigError& error) {
  // All but these are right in any pod.
  const bool with_gpus = error.example.starts_with("gpushm.io/topology");
  const bool with_claim = error.example.starts_with("gpushm.io/role");
  const std::string more = with_gpus    ? Concat("\ngpushm.io/gpus: \"", c.gpus, "\"")
                           : with_claim ? "\ngpushm.io/claim: weights"
                                        : "";
  const auto pod = ParseBuffersEnvironment(error.example + more, kPod);
  EXPECT_TRUE(pod) << error.example << "\n" << pod.error().ToString();
  // In a pod's metadata values are strings.
  const yaml::YamlTree tree = yaml::ParseYaml(error.example);
  ASSERT_EQ(tree.root.entries.size(), 1U) << error.example;
  const yaml::YamlEntry& entry = tree.root.entries[0];
  ASSERT_EQ(entry.value.kind, yaml::YamlNode::Kind::kScalar) << error.example;
  Annotations annotations = {{entry.key.text, entry.value.text}};
  if (with_gpus) annotations["gpushm.io/gpus"] = c.gpus;
  if (with_claim) annotations["gpushm.io/claim"] = "weights";
  const auto alone = ParseAnnotations(annotations, kPod);
  EXPECT_TRUE(alone) << alone.error().ToString();
}

TEST(AnnotationErrorsTest, EachMistakeIsFoundAtItsPlace) {
  const std::vector<Case> all = AllCases();
  EXPECT_GE(all.size(), 100U);
  for (const Case& c : all) {
    SCOPED_TRACE(c.key.substr(0, 80) + ": " + c.text.substr(0, 200));
    const std::vector<yaml::ConfigError> errors = Errors(c);
    ASSERT_EQ(errors.size(), 1U) << (errors.size() > 1 ? yaml::ToStatus(errors, "").ToString()
                                                       : "");
    const yaml::ConfigError& error = errors[0];
    EXPECT_EQ(error.line, c.line) << error.ToString();
    EXPECT_EQ(error.column, c.column) << error.ToString();
    EXPECT_EQ(error.field, c.field) << error.ToString();
    EXPECT_NE(error.reason.find(c.reason), std::string::npos) << error.ToString();
    EXPECT_EQ(error.file, "");
    EXPECT_EQ(error.annotation, c.key);
    EXPECT_EQ(error.ToString().find('\n'), std::string::npos);
    ASSERT_FALSE(error.example.empty());
  }
}

TEST(AnnotationErrorsTest, EachExampleIsRightInThePlaceOfTheMistake) {
  for (const Case& c : AllCases()) {
    SCOPED_TRACE(c.key.substr(0, 80) + ": " + c.text.substr(0, 200));
    for (const yaml::ConfigError& error : Errors(c)) {
      ExpectAnnotationExampleParses(c, error);
    }
  }
}

// The table's example of `key`, for a pod that has a container "trainer".
std::string ExampleOf(const yaml::KeyInfo& key) {
  std::string example(key.example);
  const size_t at = example.find("$container");
  if (at != std::string::npos) example.replace(at, 10, "trainer");
  return example;
}

// Goal: no key is documented and accepted but then ignored. Method: the table's example of a key
// must change the result.
TEST(AnnotationErrorsTest, EveryExampleOfTheTableTakesEffect) {
  for (const yaml::KeyInfo& key : AnnotationKeys()) {
    std::string name(key.name);
    if (name.ends_with('/')) name += "trainer";
    // What these two need.
    const std::string more = name == kTopologyKey ? "gpushm.io/gpus: \"2\"\n"
                             : name == kRoleKey   ? "gpushm.io/claim: weights\n"
                                                  : "";
    const auto pod = Must(ParseBuffersEnvironment(Concat(more, name, ": ", ExampleOf(key))));
    EXPECT_FALSE(pod == *ParseBuffersEnvironment(more)) << name;
  }
  for (const yaml::KeyInfo& key : BufferKeys()) {
    const bool size = key.name == "size";
    const auto without = ParseAnnotations({{"buffers.gpushm.io/b", "{size: 3Gi}"}});
    const auto with =
        ParseAnnotations({{"buffers.gpushm.io/b", Concat(size ? "{" : "{size: 3Gi, ", key.name,
                                                         ": ", ExampleOf(key), "}")}});
    ASSERT_TRUE(with) << with.error().ToString();
    EXPECT_FALSE(*with == *without) << key.name;
  }
  for (const yaml::KeyInfo& key : SignalKeys()) {
    const auto without = ParseAnnotations({{"signals.gpushm.io/s", ""}});
    const auto with = Must(ParseAnnotations(
        {{"signals.gpushm.io/s", Concat("{", key.name, ": ", ExampleOf(key), "}")}}));
    EXPECT_FALSE(with == *without) << key.name;
  }
}

// One mistake is one error: the values that depend on a wrong number of GPUs are not judged.
TEST(AnnotationErrorsTest, AWrongNumberOfGpusIsReportedOnce) {
  const auto pod =
      ParseAnnotationsOrErrors({{"gpushm.io/gpus", "two"},
                                {"gpushm.io/topology", "nvlink"},
                                {"buffers.gpushm.io/a", "{size: 1Gi, gpu: 1}"},
                                {"buffers.gpushm.io/" + Long(63), "{size: 1Gi, gpu: each}"}});
  ASSERT_FALSE(pod);
  ASSERT_EQ(pod.error().size(), 1U);
  EXPECT_EQ(pod.error()[0].annotation, "gpushm.io/gpus");
}

// Goal: a buffer of each GPU gets names that nothing else has, and the error shows a free one.
TEST(AnnotationErrorsTest, NamesOfBuffersOnEachGpuAreFree) {
  const Annotations base = {{"gpushm.io/gpus", "2"}, {kB, "{size: 1Gi, gpu: each}"}};
  Annotations annotations = base;
  annotations["buffers.gpushm.io/weights-1"] = "1Gi";
  auto pod = ParseAnnotationsOrErrors(annotations, kPod);
  ASSERT_FALSE(pod);
  ASSERT_EQ(pod.error().size(), 1U);
  EXPECT_EQ(pod.error()[0].annotation, kB);
  EXPECT_EQ(pod.error()[0].field, "gpu");
  EXPECT_EQ(pod.error()[0].reason,
            "its buffer on GPU 1 would have the name of buffers.gpushm.io/weights-1");
  ExpectAnnotationExampleParses({}, pod.error()[0]);

  annotations = base;
  annotations["signals.gpushm.io/weights-0"] = "";
  pod = ParseAnnotationsOrErrors(annotations, kPod);
  ASSERT_FALSE(pod);
  ASSERT_EQ(pod.error().size(), 1U);
  EXPECT_EQ(pod.error()[0].annotation, "signals.gpushm.io/weights-0");
  EXPECT_EQ(pod.error()[0].reason,
            "a buffer already has this name: buffers.gpushm.io/weights on GPU 0");
  ExpectAnnotationExampleParses({}, pod.error()[0]);

  annotations = base;
  annotations["buffers.gpushm.io/weights-0"] = "{size: 1Gi, gpu: each}";  // weights-0-0 ...
  annotations["buffers.gpushm.io/weights-2"] = "1Gi";
  annotations["signals.gpushm.io/weights"] = "";
  EXPECT_TRUE(ParseAnnotationsOrErrors(annotations, kPod));
}

TEST(AnnotationErrorsTest, BuffersAreCountedOnAllGpus) {
  Annotations annotations = {{"gpushm.io/gpus", "16"}};
  for (uint32_t i = 0; i < limits::kBuffers / 16; ++i) {
    annotations[Concat("buffers.gpushm.io/b", i)] = "{size: 1Gi, gpu: each}";
  }
  const auto most = Must(ParseAnnotations(annotations, kPod));
  EXPECT_EQ(most.buffers.size(), limits::kBuffers);
  for (int i = 0; i < 2000; ++i) {
    annotations[Concat("buffers.gpushm.io/c", i)] = "{size: 1Gi, gpu: each}";
  }
  const auto pod = ParseAnnotationsOrErrors(annotations, kPod);
  ASSERT_FALSE(pod);
  ASSERT_EQ(pod.error().size(), 1U);
  EXPECT_EQ(pod.error()[0].reason,
            "36096 buffers and signals are declared; a pod may have at most 4096");
}

TEST(AnnotationErrorsTest, AMultitudeOfErrorsIsCut) {
  std::string text = "{size: 1Gi, writers: [";
  for (int i = 0; i < 20000; ++i) text += "X,";
  const auto pod = ParseAnnotationsOrErrors({{kB, text + "]}"}}, kPod);
  ASSERT_FALSE(pod);
  ASSERT_EQ(pod.error().size(), yaml::kErrorsKept + 1);
  // A list is read only up to the limit of a pod's containers.
  EXPECT_EQ(pod.error().back().reason,
            Concat("and ", limits::kContainers + 1 - yaml::kErrorsKept, " more errors"));
}

TEST(AnnotationErrorsTest, MessagesAreOneLineOfCleanText) {
  const auto pod = ParseAnnotations({{kB, "\"8\\nGi\\e[31m\\x9f\""}});
  ASSERT_FALSE(pod);
  const std::string text = pod.error().ToString();
  EXPECT_TRUE(std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; })) << text;
  EXPECT_NE(text.find("8\\nGi\\x1b[31m"), std::string::npos) << text;
}

}  // namespace
}  // namespace gpushm::annotations
