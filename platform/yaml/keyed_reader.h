// Reads the values of a configuration whose keys are in a table. Annotations, the broker's file and
// the plugin's file all use it, so the same mistake gets the same message everywhere: its place,
// the reason, and a correct example.
//
// Threads: one.
#pragma once

#include <algorithm>
#include <expected>
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

namespace gpushm::yaml {

struct KeyInfo {
  std::string_view name;      // "buffers.gpushm.io/", "size", "log.level"
  std::string_view variable;  // The text after a name that ends in '/': "<name>"; otherwise empty.
  std::string_view type;
  std::string_view default_value;
  std::string_view meaning;
  // A correct value, as YAML. "$container" is replaced by the name of a container of the pod.
  std::string_view example;
  // JSON Schema of the value, without its braces. Empty if none is published.
  std::string_view schema = "";
  bool experimental = false;  // docs/reference/compatibility.md promises the others.
};
inline constexpr bool kExperimental = true;

// A GPU, given by UUID ("GPU-..." or "MIG-...") or by NVML's index.
struct GpuChoice {
  std::string uuid;  // Empty if an index was given.
  uint32_t index = 0;

  friend bool operator==(const GpuChoice&, const GpuChoice&) = default;
};

// `text` as a GPU, or why it is neither a UUID nor an index.
std::expected<GpuChoice, std::string> ParseGpu(std::string_view text);

// The longest path of a Unix socket: sockaddr_un::sun_path without its terminating NUL.
inline constexpr size_t kSocketPathBytes = 107;

// Each function returns the value of a node. If the node has a different kind of value, it reports
// an error and returns nothing. `field` may end in an index: "containers[1]".
class FieldReader {
 public:
  virtual ~FieldReader() = default;

  // If `example` is empty, the example of the field's own key is used.
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
  // An absolute path without ".." and line breaks, at most `most_bytes` long.
  std::optional<std::string> Path(const YamlNode& node, std::string_view field, size_t most_bytes);
  // One of `names`, which are in the order of the enumeration.
  template <typename Enum>
  void Choice(const YamlNode& node, std::string_view field, std::span<const std::string_view> names,
              Enum& out);
  const std::vector<YamlEntry>* Map(const YamlNode& node, std::string_view field);
  // `all` says, for a message, what it means to leave the key out. An empty list is an error.
  const std::vector<YamlNode>* List(const YamlNode& node, std::string_view field,
                                    std::string_view all);

  // Why a name is refused, and an example. An empty reason means that the name is accepted.
  struct Refusal {
    std::string reason;
    std::string example;
  };
  // A list of at most `most` different container names. Returns those without an error.
  std::vector<std::string> ContainerNames(
      const YamlNode& node, std::string_view field, std::string_view all, size_t most,
      const std::function<Refusal(const std::string& name)>& refusal = {});
  // The map under `log`.
  void Log(const YamlNode& node, LogConfig& out);

 protected:
  virtual void Report(const YamlNode& at, std::string_view field, std::string reason,
                      std::string example) = 0;
  // Reports that `key` is not one of the known keys below `path` ("log.").
  virtual void UnknownKey(const YamlNode& key, std::string_view path) = 0;
};

// A YAML file of one of gpushm's programs.
class KeyedFile : public FieldReader {
 public:
  // `keys` must outlive this object. A key in a nested map has a name like "log.level".
  KeyedFile(std::string_view text, std::string_view file, std::span<const KeyInfo> keys)
      : text_(text), file_(file), keys_(keys) {}

  // Parses the text. Returns null if the text is empty or has errors.
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

// The value of a key, or null if the map does not have it.
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

}  // namespace gpushm::yaml
