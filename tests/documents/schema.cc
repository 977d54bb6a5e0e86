#include <string>
#include <string_view>

#include "contract/annotations/keys.h"
#include "tests/documents/documents.h"

namespace gpushm::documents {
namespace {

using yaml::KeyInfo;

constexpr std::string_view kLabel = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?";

std::string JsonText(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

// An annotation's key as a regular expression of JSON Schema. JSON doubles the backslashes.
std::string KeyPattern(const KeyInfo& key) {
  std::string pattern = "^";
  for (const char c : key.name) pattern += c == '.' ? std::string("[.]") : std::string(1, c);
  return pattern + std::string(key.variable.empty() ? std::string_view() : kLabel) + "$";
}

void AppendProperty(std::string& out, std::string_view name, const KeyInfo& key, bool last) {
  out += Concat("      ", JsonText(name), ": {\"description\": ", JsonText(key.meaning), ", ",
                key.schema, last ? "}\n" : "},\n");
}

}  // namespace

std::string AnnotationsSchema() {
  std::string known;
  std::string patterns;
  for (const KeyInfo& key : annotations::AnnotationKeys()) {
    const bool last = &key == &annotations::AnnotationKeys().back();
    AppendProperty(patterns, KeyPattern(key), key, last);
    known += Concat("      {\"pattern\": ", JsonText(KeyPattern(key)), "},\n");
  }
  std::string buffer;
  for (const KeyInfo& key : annotations::BufferKeys()) {
    AppendProperty(buffer, key.name, key, &key == &annotations::BufferKeys().back());
  }
  std::string signal;
  for (const KeyInfo& key : annotations::SignalKeys()) {
    AppendProperty(signal, key.name, key, &key == &annotations::SignalKeys().back());
  }
  return Concat(
      R"json({
  "$comment": "Made from the table in contract/annotations/keys.cc, as annotations.md is.",
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": "metadata.annotations of a Pod that uses gpushm",
  "type": "object",
  "propertyNames": {
    "anyOf": [
      {"not": {"pattern": "^[^/]*[Gg][Pp][Uu][Ss][Hh][Mm][.][Ii][Oo](/|$)"}},
)json",
      known, R"(      {"const": )", JsonText(annotations::kStatusKey), R"(}
    ]
  },
  "patternProperties": {
)",
      patterns, R"(  },
  "$defs": {
    "quantity": {
      "description": "Bytes, as Kubernetes writes them: 8Gi, 512M, 8e9.",
      "type": ["string", "integer"],
      "pattern": "^[+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([KMGTPE]i|[kMGTPE]|[eE][+-]?[0-9]+)?$",
      "minimum": 0
    },
    "positive": {
      "$ref": "#/$defs/quantity",
      "pattern": "^[+]?[0-9.]*[1-9]",
      "exclusiveMinimum": 0
    },
    "containers": {
      "description": "Names of containers of the pod.",
      "type": "array",
      "minItems": 1,
      "uniqueItems": true,
      "items": {"type": "string", "pattern": "^)",
      kLabel, R"($"}
    },
    "buffer": {
      "type": "object",
      "required": ["size"],
      "additionalProperties": false,
      "properties": {
)",
      buffer, R"(      }
    },
    "signal": {
      "type": "object",
      "additionalProperties": false,
      "properties": {
)",
      signal, R"(      }
    }
  }
}
)");
}

}  // namespace gpushm::documents
