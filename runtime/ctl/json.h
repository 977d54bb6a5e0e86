// The documents of -o json (RFC 8259): nlohmann's, with members in the order of their insertion, so
// that the output is stable.
//
// 64-bit identifiers (generations, leases) are strings, because readers that store numbers as
// doubles (jq, JavaScript) would change them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace gpushm::ctl {

using Json = nlohmann::ordered_json;

// Returns the document, with a newline at its end. Text that is not UTF-8 is replaced by U+FFFD.
// `indent` -1 puts everything on one line, for streams with one object on each line.
inline std::string JsonText(const Json& json, int indent = 2) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace gpushm::ctl
