// One thing that is wrong with a configuration: where, why, and what would be right.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "platform/base/status.h"

namespace gpushm::config {

struct ConfigError {
  // The file's name, or the environment variable's; empty for annotations of a pod's metadata.
  std::string file;
  // The annotation's key as written; empty for the broker's own keys.
  std::string annotation;
  // From 1; columns count bytes. In `file` where there is one, otherwise within the annotation's
  // value; 0 where the annotation's key itself is wrong (it has no place then).
  int line = 0;
  int column = 0;
  // Path of the field: "size", "writers[1]", "log.level"; empty: the whole value.
  std::string field;
  std::string reason;
  // `key: value`, a line of YAML that parses when it takes the place of what is wrong.
  std::string example;

  // annotations.yaml:3:12: buffers.gpushm.io/weights: size: "8GB" is not a quantity (write 8Gi or
  // 8G); example: buffers.gpushm.io/weights: 8Gi
  // In one line, whatever bytes the configuration holds.
  std::string ToString() const;

  friend bool operator==(const ConfigError&, const ConfigError&) = default;
};

// All of them as one Status (kInvalidArgument), joined by " | ". `errors` is not empty; `document`
// has every key.
Status ToStatus(std::span<const ConfigError> errors, std::string_view document);

// `text` for a message, in one line of printable ASCII: other bytes as \xNN. What takes more than
// `most_bytes` is cut off, and "..." says so.
std::string Excerpt(std::string_view text, size_t most_bytes);

// The same in quotes, at most 96 bytes of it.
std::string Quote(std::string_view text);

}  // namespace gpushm::config
