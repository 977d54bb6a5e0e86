// The errors in one configuration, each with its place in the user's text.
#pragma once

#include <expected>
#include <string>
#include <string_view>
#include <vector>

#include "platform/yaml/config_error.h"
#include "platform/yaml/yaml_tree.h"

namespace gpushm::yaml {

// The number of errors kept for one text. One more says how many were left out.
inline constexpr size_t kErrorsKept = 64;

template <typename T>
using OrErrors = std::expected<T, std::vector<ConfigError>>;

// The lines of a text, without line ends.
using Lines = std::vector<std::string_view>;
Lines SplitLines(std::string_view text);

// Maps places in a parsed tree to places in the user's text.
class Origin {
 public:
  // For the value of an annotation in a pod's metadata.
  static Origin Value(std::string_view annotation);
  // For a file's own tree. `annotation` is the key under which the tree was found, or empty.
  static Origin File(std::string_view file, std::string_view annotation = {});
  // For text inside the scalar `node` of a file that has these lines.
  static Origin Embedded(std::string_view file, std::string_view annotation, const Lines& lines,
                         const YamlNode& node);

  // An error at (line, column) of the tree, without a field, reason or example yet.
  ConfigError At(int line, int column) const;

 private:
  enum class Shape { kSame, kBlock, kLine, kPoint };
  Shape shape_ = Shape::kSame;
  std::string file_;
  std::string annotation_;
  int line_ = 1;
  int column_ = 1;
};

// Keeps the first kErrorsKept errors and counts the others.
class ErrorList {
 public:
  void Add(ConfigError error);
  bool empty() const { return errors_.empty(); }
  // Further errors are only counted, so the caller need not compute their text.
  bool full() const { return errors_.size() >= kErrorsKept; }
  // Errors of a file are sorted by place; others are in the order in which they were found.
  std::vector<ConfigError> Take();

 private:
  std::vector<ConfigError> errors_;
  size_t left_out_ = 0;
};

}  // namespace gpushm::yaml
