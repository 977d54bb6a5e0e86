// Inside of the parser: a pod's annotations once they are keys with values.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contract/annotations/annotations.h"
#include "platform/yaml/error_list.h"
#include "platform/yaml/yaml_tree.h"

namespace gpushm::config {

struct AnnotationEntry {
  std::string key;
  Origin key_origin;  // Where the key is.
  int key_line = 0;
  int key_column = 0;
  Origin origin;  // Of the value.
  YamlNode value;
};

// `key: value` for messages, with a container of the pod in it. `field`: of a buffer's or signal's
// map.
std::string AnnotationExample(std::string_view key, std::string_view field,
                              std::string_view container);

// Reads what is ours of `entries`; `duplicate` keys were dealt with before.
PodSpec ReadAnnotations(std::span<const AnnotationEntry> entries, const ParseOptions& options,
                        ErrorList& errors);

// Turns the map `annotations` of a file or environment variable into entries.
std::vector<AnnotationEntry> ReadAnnotationMap(const YamlNode& annotations, std::string_view file,
                                               std::string_view source, ErrorList& errors);

}  // namespace gpushm::config
