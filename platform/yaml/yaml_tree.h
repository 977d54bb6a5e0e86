// A small, strict subset of YAML as a tree with places, limited to what configuration needs.
// yaml-cpp does the scanning. Anchors, aliases, tags, several documents, duplicate keys, deep
// nesting, control characters and invalid UTF-8 are refused here. No exception leaves this module.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpushm::yaml {

// The most bytes of one text: a configuration file or an annotation's value.
inline constexpr size_t kConfigBytes = 256 * 1024;
// The most levels of nested maps and lists; the deepest valid text has four.
inline constexpr size_t kYamlDepth = 12;

struct YamlEntry;

struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };
  Kind kind = Kind::kNull;
  // Both start at 1, and columns count bytes. For an empty value: the place where the value should
  // be.
  int line = 1;
  int column = 1;
  std::string text;  // For a scalar.
  std::vector<YamlNode> items;
  std::vector<YamlEntry> entries;  // For a map.
};

struct YamlEntry {
  YamlNode key;  // A scalar, unique in its map.
  YamlNode value;
};

struct YamlError {
  int line = 1;
  int column = 1;
  std::string reason;
};

struct YamlTree {
  YamlNode root;                  // A null node if `whole` is false or the text is empty.
  std::vector<YamlError> errors;  // In the order of the text.
  // False if an error ended the parsing. If true and there are errors, these are duplicate keys, of
  // which the first is used.
  bool whole = true;
};
YamlTree ParseYaml(std::string_view text);

// "text", "a list", "a map" or "nothing", for messages.
std::string_view YamlKindName(YamlNode::Kind kind);

}  // namespace gpushm::yaml
