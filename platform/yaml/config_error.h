// One error in a configuration: where it is, why it is wrong, and what would be right.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "platform/base/status.h"

namespace gpushm::yaml {

struct ConfigError {
  // The name of the file or of the environment variable; empty for annotations of a pod's metadata.
  std::string file;
  // The annotation's key as written; empty for the broker's own keys.
  std::string annotation;
  // Both start at 1, and columns count bytes. They refer to `file` if there is one, otherwise to
  // the annotation's value. Both are 0 if the annotation's key itself is wrong, because a key has
  // no place.
  int line = 0;
  int column = 0;
  // Path of the field: "size", "writers[1]", "log.level". Empty for the whole value.
  std::string field;
  std::string reason;
  // `key: value`, a line of YAML that parses when it replaces the wrong text.
  std::string example;

  // For example:
  // annotations.yaml:3:12: buffers.gpushm.io/weights: size: "8GB" is not a quantity (write 8Gi or
  // 8G); example: buffers.gpushm.io/weights: 8Gi
  // The result is one line, whatever bytes the configuration contains.
  std::string ToString() const;

  friend bool operator==(const ConfigError&, const ConfigError&) = default;
};

// Joins all errors with " | " into one Status (kInvalidArgument). `errors` is not empty. `document`
// is the document that lists every key.
Status ToStatus(std::span<const ConfigError> errors, std::string_view document);

// `text` for a message, as one line of printable ASCII in which other bytes are \xNN. Text longer
// than `most_bytes` is cut off and ends in "...".
std::string Excerpt(std::string_view text, size_t most_bytes);

// The same in quotes, with at most 96 bytes of the text.
std::string Quote(std::string_view text);

}  // namespace gpushm::yaml
