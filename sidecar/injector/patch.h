// Collects the changes to a document as RFC 6902 operations, as few as possible. A change that is
// already in the document adds no operation. Fields that are not changed are never written, so
// fields that this program does not know stay as they were sent, to the byte.
//
// Threads: one.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace gpushm::injector {

using Json = nlohmann::json;
using Pointer = Json::json_pointer;

// The value at this place, or null if it is absent. A JSON null counts as absent, as in the API
// server.
const Json* Find(const Json& document, const Pointer& at);

// The list at this place; empty if it is absent or not a list.
const Json& Items(const Json& document, const Pointer& at);

class Patch {
 public:
  explicit Patch(Json document) : document_(std::move(document)) {}

  // The document after the operations so far.
  const Json& document() const { return document_; }

  // Also adds the objects on the path that are absent.
  void Set(const Pointer& at, Json value);
  // `list` may be absent.
  void Append(const Pointer& list, Json value);
  // Unless the list has it.
  void AppendMissing(const Pointer& list, const Json& value);
  void Prepend(const Pointer& list, Json value) { Insert(list, 0, std::move(value)); }
  // Before the item that is at this index now.
  void Insert(const Pointer& list, size_t index, Json value);

  // An array; empty if there is nothing to change.
  const Json& operations() const& { return operations_; }
  Json operations() && { return std::move(operations_); }

 private:
  void Record(const char* operation, const Pointer& at, const Json& value);

  Json document_;
  Json operations_ = Json::array();
};

}  // namespace gpushm::injector
