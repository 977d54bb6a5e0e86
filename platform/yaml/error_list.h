// The errors of one configuration, each with its place in what the user wrote.
#pragma once

#include <expected>
#include <string>
#include <string_view>
#include <vector>

#include "platform/yaml/config_error.h"
#include "platform/yaml/yaml_tree.h"

namespace gpushm::config {

// Errors kept of one text; one more says how many were left out.
inline constexpr size_t kErrorsKept = 64;

template <typename T>
using OrErrors = std::expected<T, std::vector<ConfigError>>;

// The lines of a text, without their ends.
using Lines = std::vector<std::string_view>;
Lines SplitLines(std::string_view text);

// Where the places of a tree lie in what the user wrote.
class Origin {
 public:
  // The value of an annotation in a pod's metadata.
  static Origin Value(std::string_view annotation);
  // A file's own tree. `annotation`: the key under which the tree was found, or empty.
  static Origin File(std::string_view file, std::string_view annotation = {});
  // Text inside the scalar `node` of a file that has these lines.
  static Origin Embedded(std::string_view file, std::string_view annotation, const Lines& lines,
                         const YamlNode& node);

  // An error at (line, column) of the tree, with no field, reason or example yet.
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
  // Others are only counted: what their text would say need not be found out.
  bool full() const { return errors_.size() >= kErrorsKept; }
  // In the order of their places in a file, as found otherwise.
  std::vector<ConfigError> Take();

 private:
  std::vector<ConfigError> errors_;
  size_t left_out_ = 0;
};

}  // namespace gpushm::config
