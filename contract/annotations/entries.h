// Internal to the parser: a pod's annotations as keys and parsed values.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contract/annotations/annotations.h"
#include "platform/yaml/error_list.h"
#include "platform/yaml/yaml_tree.h"

namespace gpushm::annotations {

struct AnnotationEntry {
  std::string key;
  yaml::Origin key_origin;  // The place of the key.
  int key_line = 0;
  int key_column = 0;
  yaml::Origin origin;  // The place of the value.
  yaml::YamlNode value;
};

// `key: value` for messages, with the name of a container of the pod in it. `field` is a field in
// the map of a buffer or signal.
std::string AnnotationExample(std::string_view key, std::string_view field,
                              std::string_view container);

// A buffer on each GPU, with a file. It has a name that is short enough and not that of `key`, if
// `other_name` is set or the name of `key` is too long.
std::string EachGpuExample(std::string_view key, bool other_name);

// The error for the value `text` of a key, which is not YAML.
yaml::ConfigError YamlMistake(const yaml::Origin& origin, std::string_view key,
                              std::string_view text, const yaml::YamlError& bad);

// Reads the entries whose keys belong to gpushm. `entries` has no duplicate keys; the caller has
// reported them.
PodSpec ReadAnnotations(std::span<const AnnotationEntry> entries, const ParseOptions& options,
                        yaml::ErrorList& errors);

// Turns the map `annotations` of a file or environment variable into entries.
std::vector<AnnotationEntry> ReadAnnotationMap(const yaml::YamlNode& annotations,
                                               std::string_view file, std::string_view source,
                                               yaml::ErrorList& errors);

}  // namespace gpushm::annotations
