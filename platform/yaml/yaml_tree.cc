#include "platform/yaml/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <set>
#include <sstream>

#include "platform/base/status.h"
#include "platform/base/utf8.h"
#include "platform/yaml/config_error.h"

namespace gpushm::yaml {
namespace {

// Ends the parsing from inside a callback; caught in ParseYaml.
struct Stop {
  YamlError error;
};

int Place(int zero_based) { return zero_based < 0 ? 1 : zero_based + 1; }

class TreeBuilder final : public YAML::EventHandler {
 public:
  YamlNode TakeRoot() { return std::move(root_); }
  std::vector<YamlError> TakeErrors() { return std::move(errors_); }
  const YamlError& start() const { return start_; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    start_ = {Place(mark.line), Place(mark.column), "a second YAML document begins here"};
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Refuse(mark, "?", anchor);
    Add(At(mark, YamlNode::Kind::kNull));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw Stop{{Place(mark.line), Place(mark.column), "aliases are not supported"}};
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    Refuse(mark, tag, anchor);
    YamlNode node = At(mark, YamlNode::Kind::kScalar);
    node.text = value;
    Add(std::move(node));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(mark, tag, anchor, YamlNode::Kind::kSequence);
  }
  void OnSequenceEnd() override { Close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(mark, tag, anchor, YamlNode::Kind::kMap);
  }
  void OnMapEnd() override { Close(); }

 private:
  struct Level {
    YamlNode node;
    std::optional<YamlNode> key;  // For a map: the key whose value comes next.
    std::set<std::string> seen;
  };

  static YamlNode At(const YAML::Mark& mark, YamlNode::Kind kind) {
    YamlNode node;
    node.kind = kind;
    node.line = Place(mark.line);
    node.column = Place(mark.column);
    return node;
  }

  static void Refuse(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != 0) {
      throw Stop{{Place(mark.line), Place(mark.column), "anchors are not supported"}};
    }
    if (!tag.empty() && tag != "?" && tag != "!") {
      throw Stop{{Place(mark.line), Place(mark.column), "tags are not supported"}};
    }
  }

  void Open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
            YamlNode::Kind kind) {
    Refuse(mark, tag, anchor);
    if (levels_.size() >= kYamlDepth) {
      throw Stop{{Place(mark.line), Place(mark.column),
                  Concat("more than ", kYamlDepth, " nested maps and lists")}};
    }
    levels_.push_back(Level{At(mark, kind), std::nullopt, {}});
  }

  void Close() {
    YamlNode node = std::move(levels_.back().node);
    levels_.pop_back();
    Add(std::move(node));
  }

  void Add(YamlNode node) {
    if (levels_.empty()) {
      root_ = std::move(node);
      return;
    }
    Level& level = levels_.back();
    if (level.node.kind == YamlNode::Kind::kSequence) {
      level.node.items.push_back(std::move(node));
    } else if (!level.key) {
      if (node.kind != YamlNode::Kind::kScalar) {
        throw Stop{
            {node.line, node.column, Concat("a key must be text, not ", YamlKindName(node.kind))}};
      }
      level.key = std::move(node);
    } else {
      AddEntry(level, std::move(node));
    }
  }

  void AddEntry(Level& level, YamlNode value) {
    YamlNode key = std::move(*level.key);
    level.key.reset();
    if (value.kind == YamlNode::Kind::kNull) {
      // The scanner is now far beyond the key, often at the end of the text.
      value.line = key.line;
      value.column = key.column;
    }
    if (!level.seen.insert(key.text).second) {
      errors_.push_back(
          {key.line, key.column, Concat("duplicate key ", Quote(key.text), " in this map")});
      return;
    }
    level.node.entries.push_back({std::move(key), std::move(value)});
  }

  YamlNode root_;
  YamlError start_;
  std::vector<Level> levels_;
  std::vector<YamlError> errors_;
};

// What is wrong with the byte at text[at], regardless of grammar; null if nothing is. yaml-cpp
// treats 0x04 as the end of the text and does not count a lone carriage return as a line.
const char* BadByte(std::string_view text, size_t at, bool indentation) {
  const auto c = static_cast<uint8_t>(text[at]);
  if (c == 0) return "a NUL byte";
  if (c == '\t') return indentation ? "a tab in the indentation; use spaces" : nullptr;
  if (c == '\r') {
    const bool pair = at + 1 < text.size() && text[at + 1] == '\n';
    return pair ? nullptr : "a carriage return without a line feed after it";
  }
  if ((c < 0x20 && c != '\n') || c == 0x7F) return "a control character";
  return nullptr;
}

std::optional<YamlError> CheckBytes(std::string_view text) {
  YamlError place;
  bool indentation = true;
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8Length(text.substr(i, 4));
    if (length == 0) {
      place.reason = "not valid UTF-8";
      return place;
    }
    if (const char* bad = BadByte(text, i, indentation)) {
      place.reason = bad;
      return place;
    }
    if (text[i] == '\n') {
      ++place.line;
      place.column = 1;
      indentation = true;
    } else {
      indentation = indentation && text[i] == ' ';
      place.column += static_cast<int>(length);
    }
    i += length;
  }
  return std::nullopt;
}

YamlTree Broken(YamlError error) { return YamlTree{{}, {std::move(error)}, false}; }

}  // namespace

std::string_view YamlKindName(YamlNode::Kind kind) {
  switch (kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kScalar:
      return "text";
    case YamlNode::Kind::kSequence:
      return "a list";
    case YamlNode::Kind::kMap:
      return "a map";
  }
  return "?";
}

YamlTree ParseYaml(std::string_view text) {
  if (text.size() > kConfigBytes) {
    return Broken(
        {1, 1, Concat(text.size(), " bytes is too long; must be at most ", kConfigBytes)});
  }
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  if (std::optional<YamlError> bad = CheckBytes(text)) return Broken(*bad);
  TreeBuilder builder;
  try {
    std::istringstream in{std::string(text)};
    YAML::Parser parser(in);
    if (!parser.HandleNextDocument(builder)) return YamlTree{};
    TreeBuilder second;
    if (parser.HandleNextDocument(second)) return Broken(second.start());
  } catch (const Stop& stop) {
    return Broken(stop.error);
  } catch (const YAML::Exception& error) {
    return Broken(
        {Place(error.mark.line), Place(error.mark.column), Concat("not valid YAML: ", error.msg)});
  } catch (const std::exception& error) {
    return Broken({1, 1, Concat("cannot be read: ", error.what())});
  }
  return YamlTree{builder.TakeRoot(), builder.TakeErrors(), true};
}

}  // namespace gpushm::yaml
