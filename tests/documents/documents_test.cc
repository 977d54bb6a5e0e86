// Goal: what users copy out of the documentation works.
// Method: every YAML example in README.md and docs/, and every manifest of deploy/examples, is
// given to the parser that would read it.
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "contract/annotations/keys.h"
#include "platform/base/status.h"
#include "plugin/config/plugin_config.h"
#include "sidecar/broker/broker_config.h"

namespace gpushm {
namespace {

namespace fs = std::filesystem;

struct Example {
  std::string where;  // "docs/guides/install.md:21"
  std::string text;
};

fs::path Source() {
  const char* const source = std::getenv("GPUSHM_SOURCE");
  return source == nullptr ? fs::path() : fs::path(source);
}

std::string Read(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The fenced blocks of a Markdown file that are marked as YAML.
std::vector<Example> Blocks(const std::string& name) {
  std::vector<Example> blocks;
  std::istringstream text(Read(Source() / name));
  bool inside = false;
  int number = 0;
  for (std::string line; std::getline(text, line);) {
    ++number;
    if (line == "```yaml") {
      blocks.push_back({Concat(name, ":", number), ""});
      inside = true;
    } else if (line.starts_with("```")) {
      inside = false;
    } else if (inside) {
      blocks.back().text += line + "\n";
    }
  }
  return blocks;
}

// The files of a folder, without its subfolders, by the end of their names.
std::vector<std::string> FilesOf(const std::string& folder, const std::string& end) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(Source() / folder)) {
    if (entry.path().extension() == end) names.push_back(folder / entry.path().filename());
  }
  return names;
}

std::vector<Example> DocumentedExamples() {
  std::vector<Example> examples = Blocks("README.md");
  for (const auto& entry : fs::recursive_directory_iterator(Source() / "docs")) {
    if (entry.path().extension() != ".md") continue;
    for (Example& block : Blocks(fs::relative(entry.path(), Source()))) {
      examples.push_back(std::move(block));
    }
  }
  return examples;
}

std::vector<Example> Manifests() {
  std::vector<Example> manifests;
  for (const char* const folder :
       {"deploy/examples", "deploy/examples/dra", "deploy/examples-overlay"}) {
    for (const std::string& name : FilesOf(folder, ".yaml")) {
      manifests.push_back({name, Read(Source() / name)});
    }
  }
  return manifests;
}

bool HasOurKey(const YAML::Node& map) {
  for (const auto& entry : map) {
    if (entry.first.IsScalar() && annotations::IsOurKey(entry.first.Scalar())) return true;
  }
  return false;
}

// Parses the annotations below `node`, and returns the number of maps with annotations.
int CheckAnnotations(const std::string& where, const YAML::Node& node, bool are_annotations) {
  int found = 0;
  if (node.IsMap() && are_annotations && HasOurKey(node)) {
    const auto pod = annotations::ParseBuffersEnvironment(YAML::Dump(node));
    EXPECT_TRUE(pod) << where << ": " << pod.error().ToString();
    return 1;
  }
  for (const auto& entry : node) {
    if (node.IsMap()) {
      found += CheckAnnotations(where, entry.second, entry.first.Scalar() == "annotations");
    } else {
      found += CheckAnnotations(where, entry, false);
    }
  }
  return found;
}

int CheckAll(const std::vector<Example>& examples) {
  int found = 0;
  for (const auto& [where, text] : examples) {
    for (const YAML::Node& document : YAML::LoadAll(text)) {
      found += CheckAnnotations(where, document, /*are_annotations=*/true);
    }
  }
  return found;
}

TEST(Documents, AnnotationsOfTheDocumentationParse) {
  ASSERT_FALSE(Source().empty()) << "GPUSHM_SOURCE must name the source tree";
  EXPECT_GE(CheckAll(DocumentedExamples()), 5);
}

TEST(Documents, AnnotationsOfTheManifestsParse) {
  const std::vector<Example> manifests = Manifests();
  EXPECT_GE(manifests.size(), 7u);
  EXPECT_GE(CheckAll(manifests), static_cast<int>(manifests.size()));
}

// Those that begin with the comment `# <name>`.
std::vector<Example> FilesNamed(const std::string& name) {
  std::vector<Example> files = DocumentedExamples();
  std::erase_if(files, [&](const Example& example) {
    return !example.text.starts_with(Concat("# ", name, "\n"));
  });
  return files;
}

TEST(Documents, BrokersFilesParse) {
  const std::vector<Example> files = FilesNamed("broker.yaml");
  EXPECT_GE(files.size(), 1u);
  for (const auto& [where, text] : files) {
    const auto config = broker::ParseBrokerConfig(text, where);
    EXPECT_TRUE(config) << config.error().ToString();
  }
}

TEST(Documents, PluginsFilesParse) {
  const std::vector<Example> files = FilesNamed("plugin.yaml");
  EXPECT_GE(files.size(), 2u);
  for (const auto& [where, text] : files) {
    const auto config = plugin::config::ParsePluginConfig(text, where);
    EXPECT_TRUE(config) << config.error().ToString();
  }
}

}  // namespace
}  // namespace gpushm
