// Reads the values of a configuration whose keys are in a table. Annotations, the broker's file and
// the plugin's file are read by it, so that the same mistake gets the same answer everywhere: its
// place, the reason, and an example that is right.
//
// Threads: one.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/log_config.h"
#include "platform/base/nearest.h"
#include "platform/yaml/error_list.h"
#include "platform/yaml/yaml_tree.h"

namespace gpushm::config {

struct KeyInfo {
  std::string_view name;      // "buffers.gpushm.io/", "size", "log.level"
  std::string_view variable;  // What follows a name that ends in '/': "<name>"; otherwise empty.
  std::string_view type;
  std::string_view default_value;
  std::string_view meaning;
  // A correct value, as YAML. "$container" stands for a container of the pod.
  std::string_view example;
  // JSON Schema of the value, without its braces; empty: none is published.
  std::string_view schema = "";
};  // Which GPU: by UUID ("GPU-..." or "MIG-...") or by NVML's index.
struct GpuChoice {
  std::string uuid;  // Empty where an index was given.
  uint32_t index = 0;

  friend bool operator==(const GpuChoice&, const GpuChoice&) = default;
};

// The longest path of a Unix socket: sockaddr_un::sun_path without its terminating NUL.
inline constexpr size_t kSocketPathBytes = 107;

// Each function returns what a node says. It returns nothing, after reporting an error, where the
// node says something else. `field` may end in an index: "containers[1]".
class FieldReader {
 public:
  virtual ~FieldReader() = default;

  // Without an example: the one of the field's own key.
  void Fail(const YamlNode& at, std::string_view field, std::string reason,
            std::string example = {}) {
    Report(at, field, std::move(reason), std::move(example));
  }

  const std::string* Text(const YamlNode& node, std::string_view field);
  std::optional<bool> Bool(const YamlNode& node, std::string_view field);
  std::optional<uint64_t> Bytes(const YamlNode& node, std::string_view field);
  // Zero is an error.
  std::optional<uint64_t> PositiveBytes(const YamlNode& node, std::string_view field);
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
  const std::vector<YamlEntry>* Map(const YamlNode& node, std::string_view field);
  // `all`: what leaving the key out means, for a message. An empty list is an error.
  const std::vector<YamlNode>* List(const YamlNode& node, std::string_view field,
                                    std::string_view all);

  // Why a name is refused, and an example; an empty reason accepts it.
  struct Refusal {
    std::string reason;
    std::string example;
  };
  // A list of different container names, at most `most`; those without an error.
  std::vector<std::string> ContainerNames(
      const YamlNode& node, std::string_view field, std::string_view all, size_t most,
      const std::function<Refusal(const std::string& name)>& refusal = {});
  // The map under `log`.
  void Log(const YamlNode& node, LogConfig& out);

 protected:
  virtual void Report(const YamlNode& at, std::string_view field, std::string reason,
                      std::string example) = 0;
  // `key` is none of those below `path` ("log.").
  virtual void UnknownKey(const YamlNode& key, std::string_view path) = 0;
};

// A YAML file of one of our programs.
class KeyedFile : public FieldReader {
 public:
  // `keys` outlive it; those of a map inside as "log.level".
  KeyedFile(std::string_view text, std::string_view file, std::span<const KeyInfo> keys)
      : text_(text), file_(file), keys_(keys) {}

  // Parses. Null: there are errors, and nothing to read; or the text is empty.
  const YamlNode* Root();

  void Unknown(const YamlNode& key, std::string_view path) { UnknownKey(key, path); }

  std::string_view text() const { return text_; }
  std::string_view file() const { return file_; }
  ErrorList& errors() { return errors_; }

 private:
  void Report(const YamlNode& at, std::string_view field, std::string reason,
              std::string example) override;
  void UnknownKey(const YamlNode& key, std::string_view path) override;
  std::string Example(std::string_view field) const;

  const std::string_view text_;
  const std::string_view file_;
  const std::span<const KeyInfo> keys_;
  YamlTree tree_;
  ErrorList errors_;
};

// The value of a key; null where the map has no such key.
const YamlNode* Find(const YamlNode& map, std::string_view name);

// "a, b or c".
std::string JoinNames(std::span<const std::string_view> names);

template <typename Enum>
void FieldReader::Choice(const YamlNode& node, std::string_view field,
                         std::span<const std::string_view> names, Enum& out) {
  const std::string* text = Text(node, field);
  if (text == nullptr) return;
  const auto at = std::ranges::find(names, std::string_view(*text));
  if (at == names.end()) {
    return Fail(node, field,
                Concat(Quote(*text), " is not one of ", JoinNames(names), "; the nearest is ",
                       Nearest(*text, names)));
  }
  out = static_cast<Enum>(at - names.begin());
}

}  // namespace gpushm::config
