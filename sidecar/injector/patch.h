// Collects the changes to a document as RFC 6902 operations: the fewest that make it so, and none
// where it is so already. What nobody names here is never written, so fields that this program does
// not know stay as they were sent, to the byte.
//
// Threads: one.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace gpushm::injector {

using Json = nlohmann::json;
using Pointer = Json::json_pointer;

// The value there; null counts as absent, as the API server reads it.
const Json* Find(const Json& document, const Pointer& at);

// The list there; empty where it is absent or no list.
const Json& Items(const Json& document, const Pointer& at);

class Patch {
 public:
  explicit Patch(Json document) : document_(std::move(document)) {}

  // As the operations so far make it.
  const Json& document() const { return document_; }

  // Objects on the way that are absent come with it.
  void Set(const Pointer& at, Json value);
  // `list` may be absent.
  void Append(const Pointer& list, Json value);
  void Prepend(const Pointer& list, Json value);

  // An array; empty: nothing to do.
  const Json& operations() const& { return operations_; }
  Json operations() && { return std::move(operations_); }

 private:
  void Record(const char* operation, const Pointer& at, const Json& value);

  Json document_;
  Json operations_ = Json::array();
};

}  // namespace gpushm::injector
