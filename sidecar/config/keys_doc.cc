#include "platform/base/status.h"
#include "sidecar/config/keys.h"

namespace gpushm::config {
namespace {

void AppendTable(std::string& out, std::span<const KeyInfo> keys) {
  out += "| key | value | default | meaning | example |\n|---|---|---|---|---|\n";
  for (const KeyInfo& key : keys) {
    std::string example(key.example);
    if (const size_t at = example.find("$container"); at != std::string::npos) {
      example.replace(at, std::string_view("$container").size(), "trainer");
    }
    const std::string_view unset = key.default_value.empty() ? "-" : key.default_value;
    out += Concat("| `", key.name, key.variable, "` | ", key.type, " | ", unset, " | ", key.meaning,
                  " | `", example, "` |\n");
  }
}

constexpr std::string_view kLabel = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?";

std::string JsonText(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

// An annotation's key as a regular expression of JSON Schema; JSON doubles the backslashes.
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
  for (const KeyInfo& key : AnnotationKeys()) {
    const bool last = &key == &AnnotationKeys().back();
    AppendProperty(patterns, KeyPattern(key), key, last);
    known += Concat("      {\"pattern\": ", JsonText(KeyPattern(key)), "},\n");
  }
  std::string buffer;
  for (const KeyInfo& key : BufferKeys()) {
    AppendProperty(buffer, key.name, key, &key == &BufferKeys().back());
  }
  std::string signal;
  for (const KeyInfo& key : SignalKeys()) {
    AppendProperty(signal, key.name, key, &key == &SignalKeys().back());
  }
  return Concat(
      R"json({
  "$comment": "Made from the table in sidecar/config/keys.cc, as annotations.md is.",
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": "metadata.annotations of a Pod that uses gpushm",
  "type": "object",
  "propertyNames": {
    "anyOf": [
      {"not": {"pattern": "^[^/]*[Gg][Pp][Uu][Ss][Hh][Mm][.][Ii][Oo](/|$)"}},
)json",
      known, R"(      {"const": )", JsonText(kStatusKey), R"(}
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

std::string AnnotationsMarkdown() {
  std::string out =
      "<!-- Made from the table in sidecar/config/keys.cc by `./run docs`. -->\n"
      "# Annotations\n\n"
      "A pod asks for GPU buffers in its annotations:\n\n"
      "```yaml\nmetadata:\n  annotations:\n"
      "    buffers.gpushm.io/weights: 8Gi\n"
      "    buffers.gpushm.io/frames: |\n"
      "      size: 512Mi\n      generations: 2\n      access: one-writer\n"
      "      writers: [decoder]\n"
      "    signals.gpushm.io/frame: '{writers: [decoder]}'\n"
      "    private.gpushm.io/model: 2Gi\n```\n\n"
      "Every other key under a domain that ends in `gpushm.io` is refused with the nearest known "
      "one "
      "(`gpushm.io/status` is written by gpushm). Keys of other domains are not looked at. "
      "[annotations.schema.json](annotations.schema.json) is as much of it as a JSON Schema can "
      "say, for editors and policies: keys, single values and, for tools that look into "
      "`contentSchema`, maps. What only sums, the pod or two keys together tell is denied by the "
      "webhook alone; and of YAML's ways to write a value the schema may know but the plain "
      "one.\n\n";
  AppendTable(out, AnnotationKeys());
  out += "\n## A buffer's map\n\nUnknown and repeated keys are refused.\n\n";
  AppendTable(out, BufferKeys());
  out +=
      "\n## A signal's map\n\n"
      "`signals.gpushm.io/ready: \"\"` declares one that all containers may write and wait for; "
      "who "
      "does that, and how, is in [synchronisation.md](synchronisation.md). Names are shared with "
      "buffers.\n\n";
  AppendTable(out, SignalKeys());
  out +=
      "\n## Quantities\n\n"
      "As Kubernetes' resource quantities: `Ki Mi Gi Ti Pi Ei` are powers of 1024, `k M G T P E` "
      "of "
      "1000, `8e9` has an exponent, and fractions such as `1.5Gi` are fine where they come out in "
      "whole bytes. Negative values, `m`, `u`, `n` and more than 64Ti are refused. Unlike in "
      "Kubernetes, nothing is rounded up: `0.5` bytes and `0.5m` of a CPU are refused, since "
      "nobody "
      "means them, and so is a unit without a number.\n\n"
      "## What a pod takes of a GPU\n\n"
      "The sum of size x generations over its buffers, `gpushm.io/pool-extra`, the private bytes "
      "of "
      "each container that attaches, and 1Gi where a buffer has `file` or `loads`; each rounded up "
      "to 2Mi, the sum rounded up to units of `gpushm.io/memory` once; one unit at least, also of "
      "a "
      "pod that shares nothing but signals.\n\n"
      "## The broker's file\n\n"
      "A broker that is run by hand reads a YAML file with these keys; `file` may be an absolute "
      "path there, and the values of annotations need no quotes.\n\n";
  AppendTable(out, BrokerKeys());
  return out;
}

}  // namespace gpushm::config
