// A YAML file of one of our programs whose keys are in a table: what reading the broker's and the
// plugin's files has in common. Each error gets its place, and an example out of the table.
//
// Threads: one.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/log_config.h"
#include "sidecar/config/config.h"
#include "sidecar/config/keys.h"
#include "sidecar/config/reader.h"
#include "sidecar/config/yaml_tree.h"

namespace gpushm::config {

// Where a message names a folder of sockets: sockaddr_un::sun_path without its end.
inline constexpr size_t kSocketPathBytes = 107;

class KeyedFile {
 public:
  // `keys` outlive it; those of a map inside as "log.level".
  KeyedFile(std::string_view text, std::string_view file, std::span<const KeyInfo> keys)
      : text_(text), file_(file), keys_(keys) {}

  // Parses. Null: there are errors, and nothing to read; or the text is empty.
  const YamlNode* Root();

  // `field` may end in an index: "containers[1]". Without an example: the table's.
  void Fail(const YamlNode& at, std::string_view field, std::string reason,
            std::string example = {});
  void Unknown(const YamlNode& key, std::string_view path);

  // What a node says; null or nothing where it says something else, with an error.
  const std::string* Text(const YamlNode& node, std::string_view field);
  std::optional<bool> Bool(const YamlNode& node, std::string_view field);
  std::optional<uint64_t> Bytes(const YamlNode& node, std::string_view field);
  std::optional<uint32_t> Number(const YamlNode& node, std::string_view field, uint32_t least,
                                 uint32_t most);
  // A UUID or an index.
  std::optional<GpuChoice> Gpu(const YamlNode& node, std::string_view field);
  // Absolute, without ".." and line breaks, at most `most_bytes` long.
  std::optional<std::string> Path(const YamlNode& node, std::string_view field, size_t most_bytes);
  // One of `names`, in the order of the enumeration.
  template <typename Enum>
  void Choice(const YamlNode& node, std::string_view field, std::span<const std::string_view> names,
              Enum& out);
  // `what`: what is in the list, for a message. Null: it is no list, or empty.
  const std::vector<YamlNode>* List(const YamlNode& node, std::string_view field,
                                    std::string_view what);
  // The map under `log`.
  void Log(const YamlNode& node, LogConfig& out);

  std::string Example(std::string_view field) const;
  std::string_view text() const { return text_; }
  std::string_view file() const { return file_; }
  ErrorList& errors() { return errors_; }

 private:
  const std::string_view text_;
  const std::string_view file_;
  const std::span<const KeyInfo> keys_;
  YamlTree tree_;
  ErrorList errors_;
};

// The value of a key; null where the map has no such key.
const YamlNode* Find(const YamlNode& map, std::string_view name);

template <typename Enum>
void KeyedFile::Choice(const YamlNode& node, std::string_view field,
                       std::span<const std::string_view> names, Enum& out) {
  const std::string* text = Text(node, field);
  if (text == nullptr) return;
  const auto at = std::ranges::find(names, std::string_view(*text));
  if (at == names.end()) {
    return Fail(node, field,
                Concat(Quote(*text), " is unknown; the nearest is ", Nearest(*text, names)));
  }
  out = static_cast<Enum>(at - names.begin());
}

}  // namespace gpushm::config
