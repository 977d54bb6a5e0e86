#include "sidecar/injector/patch.h"

#include <algorithm>
#include <utility>

namespace gpushm::injector {

const Json* Find(const Json& document, const Pointer& at) {
  if (!document.contains(at)) return nullptr;
  const Json& found = document[at];
  return found.is_null() ? nullptr : &found;
}

const Json& Items(const Json& document, const Pointer& at) {
  static const Json none = Json::array();
  const Json* const found = Find(document, at);
  return found != nullptr && found->is_array() ? *found : none;
}

// An initializer list would copy the value two more times.
void Patch::Record(const char* operation, const Pointer& at, const Json& value) {
  Json::object_t entry;
  entry.emplace("op", operation);
  entry.emplace("path", at.to_string());
  entry.emplace("value", value);
  operations_.push_back(std::move(entry));
}

void Patch::Set(const Pointer& at, Json value) {
  const Json* const there = Find(document_, at);
  if (there != nullptr && *there == value) return;
  const Pointer parent = at.parent_pointer();
  if (there == nullptr && !parent.empty() && Find(document_, parent) == nullptr) {
    Json object = Json::object();
    object[at.back()] = std::move(value);
    return Set(parent, std::move(object));
  }
  Record(there != nullptr ? "replace" : "add", at, value);
  document_[at] = std::move(value);
}

void Patch::Append(const Pointer& list, Json value) {
  if (Find(document_, list) == nullptr) return Set(list, Json::array({std::move(value)}));
  Record("add", list / "-", value);
  document_[list].push_back(std::move(value));
}

void Patch::AppendMissing(const Pointer& list, const Json& value) {
  const Json& items = Items(document_, list);
  if (std::find(items.begin(), items.end(), value) == items.end()) Append(list, value);
}

void Patch::Insert(const Pointer& list, size_t index, Json value) {
  if (Find(document_, list) == nullptr) return Set(list, Json::array({std::move(value)}));
  Record("add", list / index, value);
  Json& items = document_[list];
  items.insert(items.begin() + static_cast<ptrdiff_t>(index), std::move(value));
}

}  // namespace gpushm::injector
