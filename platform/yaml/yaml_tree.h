// A small, strict subset of YAML as a tree with places: what configuration needs and no more.
// yaml-cpp does the scanning; anchors, aliases, tags, several documents, duplicate keys, deep
// nesting, control characters and broken UTF-8 are refused here. No exception leaves.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpushm::config {

// Bytes of one text: a configuration file or an annotation's value.
inline constexpr size_t kConfigBytes = 256 * 1024;
// Levels of maps and lists inside each other; the deepest valid text has four.
inline constexpr size_t kYamlDepth = 12;

struct YamlEntry;

struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };
  Kind kind = Kind::kNull;
  // From 1; columns count bytes. Of an empty value: where something should be.
  int line = 1;
  int column = 1;
  std::string text;  // Of a scalar.
  std::vector<YamlNode> items;
  std::vector<YamlEntry> entries;  // Of a map.
};

struct YamlEntry {
  YamlNode key;  // A scalar, once in its map.
  YamlNode value;
};

struct YamlError {
  int line = 1;
  int column = 1;
  std::string reason;
};

struct YamlTree {
  YamlNode root;                  // A null node where `whole` is false, or the text is empty.
  std::vector<YamlError> errors;  // In the order of the text.
  // False: an error ended the parsing. True with errors: duplicate keys; the first ones count.
  bool whole = true;
};
YamlTree ParseYaml(std::string_view text);

// "text", "a list", "a map", "nothing": for messages.
std::string_view YamlKindName(YamlNode::Kind kind);

}  // namespace gpushm::config
