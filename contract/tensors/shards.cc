#include "contract/tensors/shards.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "contract/limits.h"
#include "contract/tensors/json.h"
#include "platform/base/quote.h"

namespace gpushm::tensors {
namespace {

constexpr std::string_view kMapKey = "weight_map";

// The tensor and the number of its file.
struct Listed {
  std::string tensor;
  uint32_t file;
};

bool IsPlainFileName(std::string_view name) {
  return !name.empty() && TextProblem(name) == nullptr && name != "." && name != ".." &&
         name.find('/') == std::string_view::npos;
}

class IndexHandler : public JsonHandler {
 public:
  bool start_object(std::size_t) override {
    ++depth_;
    if (depth_ == 2 && is_map_) in_map_ = true;
    return depth_ <= 2 || !in_map_ || Unexpected("object");
  }
  bool end_object() override {
    --depth_;
    if (depth_ == 1) in_map_ = false;
    return true;
  }
  bool key(string_t& name) override {
    if (in_map_) return BeginTensor(name);
    if (depth_ != 1) return true;
    is_map_ = name == kMapKey;
    return !is_map_ || !std::exchange(has_map_, true) || Invalid("the key occurs twice");
  }
  bool string(string_t& value) override {
    return in_map_ ? AddFile(value) : Ignored("text " + Quote(value));
  }
  bool null() override { return Ignored("null"); }
  bool boolean(bool value) override { return Ignored(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return Ignored(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override { return Ignored(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { return Ignored(Quote(text)); }
  bool start_array(std::size_t) override {
    if (!Ignored("array")) return false;
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }

  bool has_map() const { return has_map_; }
  // Of each file, its number in the order of appearance.
  const std::map<std::string, uint32_t, std::less<>>& files() const { return files_; }
  std::vector<Listed>& listed() { return listed_; }

 protected:
  std::string Place() const override {
    if (!is_map_) return {};
    if (!in_map_ || listed_.empty()) return std::string(kMapKey);
    return Concat(kMapKey, ": ", Quote(listed_.back().tensor));
  }

 private:
  // A value outside of the map is not our concern; instead of the map or in it there must be none.
  bool Ignored(std::string_view what) {
    return !(in_map_ || (depth_ == 1 && is_map_)) || Unexpected(what);
  }

  bool BeginTensor(const string_t& name) {
    if (const char* const problem = TextProblem(name)) {
      return Refuse(Code::kInvalidArgument,
                    Concat(kMapKey, ": invalid tensor name ", Quote(name), ": ", problem));
    }
    if (listed_.size() == limits::kTensors) {
      return Refuse(Code::kExhausted, Concat("more tensors than the limit of ", limits::kTensors));
    }
    listed_.push_back({.tensor = name, .file = 0});
    return true;
  }

  bool AddFile(const string_t& name) {
    auto at = files_.find(name);
    if (at == files_.end()) {
      if (!IsPlainFileName(name)) {
        return Invalid(Concat(Quote(name), " is not the name of a file in the same folder"));
      }
      if (files_.size() == limits::kTensorFiles) {
        return Refuse(Code::kExhausted,
                      Concat("more files than the limit of ", limits::kTensorFiles));
      }
      at = files_.emplace(name, static_cast<uint32_t>(files_.size())).first;
    }
    listed_.back().file = at->second;
    return true;
  }

  int64_t depth_ = 0;    // Objects and arrays that are open.
  bool is_map_ = false;  // The value of the current key of the outermost object is the map.
  bool in_map_ = false;
  bool has_map_ = false;
  std::map<std::string, uint32_t, std::less<>> files_;
  std::vector<Listed> listed_;
};

Result<std::vector<Shard>> ReadIndex(int fd, uint64_t size_bytes) {
  if (size_bytes == 0) return FailShort("it is empty");
  if (size_bytes > limits::kSafetensorsHeaderBytes) {
    return Fail(Code::kExhausted, Concat("it has ", size_bytes, " bytes, and the limit is ",
                                         limits::kSafetensorsHeaderBytes));
  }
  const auto text = ReadText(fd, 0, size_bytes);
  if (!text) return std::unexpected(text.error());
  return ParseShardIndex(*text);
}

}  // namespace

Result<std::vector<Shard>> ParseShardIndex(std::string_view text) {
  IndexHandler handler;
  if (auto parsed = ParseJsonObject(text, &handler); !parsed) {
    if (handler.error_at() <= text.size()) return std::unexpected(parsed.error());
    return FailShort(Concat("it ends in the middle of its JSON, after ", text.size(), " bytes"));
  }
  if (!handler.has_map()) return Fail(Code::kInvalidArgument, Concat("it has no ", kMapKey));
  std::vector<Listed>& listed = handler.listed();
  if (listed.empty()) return Fail(Code::kInvalidArgument, Concat(kMapKey, " lists no tensor"));
  std::ranges::sort(listed, {}, &Listed::tensor);
  const auto twice = std::ranges::adjacent_find(listed, {}, &Listed::tensor);
  if (twice != listed.end()) {
    return Fail(Code::kInvalidArgument,
                Concat(kMapKey, ": tensor ", Quote(twice->tensor), " occurs twice"));
  }
  // From the number of a file to its place in the order of names.
  std::vector<Shard> shards;
  std::vector<size_t> places(handler.files().size());
  for (const auto& [file, number] : handler.files()) {
    places[number] = shards.size();
    shards.push_back({.file = file});
  }
  for (Listed& one : listed) {
    shards[places[one.file]].tensors.push_back(std::move(one.tensor));
  }
  return shards;
}

Result<std::vector<Shard>> ReadShardIndex(int fd, uint64_t size_bytes, std::string_view name) {
  auto shards = ReadIndex(fd, size_bytes);
  if (!shards) {
    return std::unexpected(shards.error().WithContext(Concat("index of shards ", Quote(name))));
  }
  return shards;
}

Result<void> KeepListed(const Shard& shard, SafetensorsFile* file) {
  std::vector<bool> found(shard.tensors.size());
  const auto listed = [&](const Tensor& tensor) {
    const auto at = std::ranges::lower_bound(shard.tensors, tensor.name);
    if (at == shard.tensors.end() || *at != tensor.name) return false;
    found[static_cast<size_t>(at - shard.tensors.begin())] = true;
    return true;
  };
  std::erase_if(file->tensors, std::not_fn(listed));
  const auto missing = std::ranges::find(found, false);
  if (missing == found.end()) return {};
  return Fail(Code::kInvalidArgument,
              Concat("tensor file ", Quote(shard.file), " lacks tensor ",
                     Quote(shard.tensors[static_cast<size_t>(missing - found.begin())]),
                     ", which the index lists for it"),
              "fetch all files of the model again, in the same version");
}

}  // namespace gpushm::tensors
