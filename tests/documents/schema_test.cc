// Goal: docs/reference/annotations.schema.json agrees with the parser, as far as a schema can.
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <regex>

#include "contract/annotations/annotations.h"
#include "tests/documents/documents.h"

namespace gpushm::documents {
namespace {

using annotations::ParseAnnotations;

// Goal: the parser refuses what the schema's patterns refuse, and vice versa, as far as a pattern
// can express it.
TEST(SchemaTest, ItsPatternsAreTheParsers) {
  const YAML::Node schema = YAML::Load(AnnotationsSchema());
  const YAML::Node types = schema["$defs"];
  const auto matches = [](const YAML::Node& pattern, const std::string& text) {
    return std::regex_search(text, std::regex(pattern.Scalar()));
  };
  const auto parses = [](const std::string& key, const std::string& value) {
    return ParseAnnotations({{key, value}}).has_value();
  };

  const auto key_fits = [&](const std::string& key) {
    bool fits = !matches(schema["propertyNames"]["anyOf"][0]["not"]["pattern"], key);
    for (const auto& known : schema["patternProperties"]) fits = fits || matches(known.first, key);
    return fits;
  };
  for (const char* key : {"buffers.gpushm.io/a", "gpushm.io/pool-extra", "sidecar.gpushm.io/memory",
                          "loader.gpushm.io/memory", "private.gpushm.io/a", "gpushm.io.example/a",
                          "a.example/gpushm.io"}) {
    EXPECT_TRUE(key_fits(key) && parses(key, "1Gi")) << key;
  }
  for (const char* key : {"Buffers.GPUSHM.io/a", "buffers.gpushm.io/A", "buffers.gpushm.io/",
                          "buffer.gpushm.io/a", "x-gpushm.io/a", "GPUshm.io", "gpushm.io/other"}) {
    EXPECT_FALSE(key_fits(key) || parses(key, "1Gi")) << key;
  }

  const auto size_fits = [&](const std::string& size) {
    return matches(types["quantity"]["pattern"], size) &&
           matches(types["positive"]["pattern"], size);
  };
  for (const char* size : {"1", "8Gi", "+1.5Gi", ".5Gi", "10e3", "0.5k", "64Ti"}) {
    EXPECT_TRUE(size_fits(size) && parses("buffers.gpushm.io/a", size)) << size;
  }
  for (const char* size : {"", "0", "0Gi", "+00.0", "0e9", ".0k", "8GB", "-1", "1m", "Gi"}) {
    EXPECT_FALSE(size_fits(size) || parses("buffers.gpushm.io/a", size)) << size;
  }

  const YAML::Node path = types["buffer"]["properties"]["file"]["pattern"];
  const auto file_parses = [&](const std::string& file) {
    return parses("buffers.gpushm.io/a", Concat("{size: 1Gi, file: \"", file, "\"}"));
  };
  for (const char* file : {"m/w", "m/a b/w.bin", "m/.a/..b/...", "m-0/w.", "m/", "m/w/"}) {
    EXPECT_TRUE(matches(path, file) && file_parses(file)) << file;
  }
  for (const char* file :
       {"m", "/m/w", "M/w", "../w", "m/../w", "m/a/..", "m/./w", "m/.", "m//w", "m//", "m/w//"}) {
    EXPECT_FALSE(matches(path, file) || file_parses(file)) << file;
  }
}

}  // namespace
}  // namespace gpushm::documents
