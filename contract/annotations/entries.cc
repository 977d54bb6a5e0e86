#include "contract/annotations/entries.h"

#include "contract/annotations/keys.h"

namespace gpushm::config {

std::string AnnotationExample(std::string_view key, std::string_view field,
                              std::string_view container) {
  const auto fill = [&](std::string text) {
    static constexpr std::string_view kVariable = "$container";
    const size_t at = text.find(kVariable);
    if (at != std::string::npos) text.replace(at, kVariable.size(), container);
    return text;
  };
  const bool buffer = key.starts_with(kBuffersPrefix);
  if (buffer || key.starts_with(kSignalsPrefix)) {
    for (const KeyInfo& info : buffer ? BufferKeys() : SignalKeys()) {
      if (info.name != field || field == "size") continue;
      return fill(
          Concat(key, ": '{", buffer ? "size: 8Gi, " : "", field, ": ", info.example, "}'"));
    }
    return Concat(key, buffer ? ": 8Gi" : ": \"\"");
  }
  for (const KeyInfo& info : AnnotationKeys()) {
    if (info.name == key || (!info.variable.empty() && key.starts_with(info.name))) {
      return fill(Concat(key, ": ", info.example));
    }
  }
  return {};
}

std::vector<AnnotationEntry> ReadAnnotationMap(const YamlNode& annotations, std::string_view file,
                                               std::string_view source, ErrorList& errors) {
  std::vector<AnnotationEntry> entries;
  const Lines lines = SplitLines(source);
  for (const auto& [key, value] : annotations.entries) {
    if (!IsOurKey(key.text)) continue;
    AnnotationEntry entry{key.text,   Origin::File(file, key.text), key.line,
                          key.column, Origin::File(file, key.text), value};
    if (value.kind == YamlNode::Kind::kScalar) {
      entry.origin = Origin::Embedded(file, key.text, lines, value);
      YamlTree tree = ParseYaml(value.text);
      for (const YamlError& bad : tree.errors) {
        ConfigError error = entry.origin.At(bad.line, bad.column);
        error.reason = bad.reason;
        error.example = AnnotationExample(key.text, "", "trainer");
        errors.Add(std::move(error));
      }
      if (!tree.whole) continue;
      entry.value = std::move(tree.root);
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace gpushm::config
