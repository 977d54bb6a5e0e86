#include "contract/annotations/entries.h"

#include "contract/annotations/keys.h"
#include "contract/limits.h"

namespace gpushm::annotations {

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
    for (const yaml::KeyInfo& info : buffer ? BufferKeys() : SignalKeys()) {
      if (info.name != field || field == "size") continue;
      return fill(
          Concat(key, ": '{", buffer ? "size: 8Gi, " : "", field, ": ", info.example, "}'"));
    }
    return Concat(key, buffer ? ": 8Gi" : ": \"\"");
  }
  for (const yaml::KeyInfo& info : AnnotationKeys()) {
    if (info.name == key || (!info.variable.empty() && key.starts_with(info.name))) {
      return fill(Concat(key, ": ", info.example));
    }
  }
  return {};
}

std::string EachGpuExample(std::string_view key, bool other_name) {
  constexpr std::string_view kEnd = "-gpu";
  constexpr size_t kMost = limits::kNameBytes - std::string_view("-15").size();
  std::string name(key.substr(kBuffersPrefix.size()));
  if (other_name || name.size() > kMost) name = Concat(name.substr(0, kMost - kEnd.size()), kEnd);
  return Concat(kBuffersPrefix, name,
                ": '{size: 8Gi, gpu: each, file: \"models/shard-{gpu}.safetensors\"}'");
}

yaml::ConfigError YamlMistake(const yaml::Origin& origin, std::string_view key,
                              std::string_view text, const yaml::YamlError& bad) {
  yaml::ConfigError error = origin.At(bad.line, bad.column);
  error.reason = bad.reason;
  error.example = AnnotationExample(key, "", "trainer");
  // YAML takes the braces for a map, and its own words do not lead there.
  const size_t first = text.find_first_not_of(" \n");
  if (key.starts_with(kBuffersPrefix) && text.contains("{gpu}") && text[first] == '{') {
    error.reason += "; {gpu} needs quotes in a map that is written in braces";
    error.example = EachGpuExample(key, /*other_name=*/false);
  }
  return error;
}

std::vector<AnnotationEntry> ReadAnnotationMap(const yaml::YamlNode& annotations,
                                               std::string_view file, std::string_view source,
                                               yaml::ErrorList& errors) {
  std::vector<AnnotationEntry> entries;
  const yaml::Lines lines = yaml::SplitLines(source);
  for (const auto& [key, value] : annotations.entries) {
    if (!IsOurKey(key.text)) continue;
    AnnotationEntry entry{key.text,   yaml::Origin::File(file, key.text), key.line,
                          key.column, yaml::Origin::File(file, key.text), value};
    if (value.kind == yaml::YamlNode::Kind::kScalar) {
      entry.origin = yaml::Origin::Embedded(file, key.text, lines, value);
      yaml::YamlTree tree = yaml::ParseYaml(value.text);
      for (const yaml::YamlError& bad : tree.errors) {
        errors.Add(YamlMistake(entry.origin, key.text, value.text, bad));
      }
      if (!tree.whole) continue;
      entry.value = std::move(tree.root);
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace gpushm::annotations
