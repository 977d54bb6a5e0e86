#include "platform/yaml/error_list.h"

#include <algorithm>
#include <tuple>

namespace gpushm::yaml {

Lines SplitLines(std::string_view text) {
  Lines lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

Origin Origin::Value(std::string_view annotation) {
  Origin origin;
  origin.annotation_ = annotation;
  return origin;
}

Origin Origin::File(std::string_view file, std::string_view annotation) {
  Origin origin;
  origin.file_ = file;
  origin.annotation_ = annotation;
  return origin;
}

Origin Origin::Embedded(std::string_view file, std::string_view annotation, const Lines& lines,
                        const YamlNode& node) {
  Origin origin = File(file, annotation);
  origin.shape_ = Shape::kPoint;
  origin.line_ = node.line;
  origin.column_ = node.column;
  const auto at = static_cast<size_t>(node.line - 1);
  const auto start = static_cast<size_t>(node.column - 1);
  if (at >= lines.size() || start >= lines[at].size()) return origin;
  const std::string_view here = lines[at].substr(start);
  if (here[0] == '|') {
    // The lines of a block scalar appear in the file unchanged, after the indentation of the first
    // line that is not blank.
    for (size_t i = at + 1; i < lines.size(); ++i) {
      const size_t indent = lines[i].find_first_not_of(" \r");
      if (indent == std::string_view::npos) continue;
      origin.shape_ = Shape::kBlock;
      origin.line_ = node.line + 1;
      origin.column_ = static_cast<int>(indent) + 1;
      break;
    }
    return origin;
  }
  const bool quoted = here[0] == '\'' || here[0] == '"';
  if (here.substr(quoted ? 1 : 0).starts_with(node.text)) {
    origin.shape_ = Shape::kLine;
    origin.column_ += quoted ? 1 : 0;
  }
  return origin;
}

ConfigError Origin::At(int line, int column) const {
  ConfigError error;
  error.file = file_;
  error.annotation = annotation_;
  error.line = line;
  error.column = column;
  switch (shape_) {
    case Shape::kSame:
      break;
    case Shape::kBlock:
      error.line = line_ + line - 1;
      error.column = column_ + column - 1;
      break;
    case Shape::kLine:
      error.line = line_;
      error.column = column_ + column - 1;
      break;
    case Shape::kPoint:
      error.line = line_;
      error.column = column_;
      break;
  }
  return error;
}

void ErrorList::Add(ConfigError error) {
  if (!full()) {
    errors_.push_back(std::move(error));
  } else {
    ++left_out_;
  }
}

std::vector<ConfigError> ErrorList::Take() {
  // Annotations of a pod's metadata are already in the order of their keys.
  if (!errors_.empty() && !errors_.front().file.empty()) {
    std::ranges::sort(errors_, {}, [](const ConfigError& error) {
      return std::tie(error.line, error.column, error.reason);
    });
  }
  if (left_out_ > 0) {
    ConfigError more;
    more.file = errors_.front().file;
    more.reason = Concat("and ", left_out_, " more errors");
    errors_.push_back(std::move(more));
  }
  return std::move(errors_);
}

}  // namespace gpushm::yaml
