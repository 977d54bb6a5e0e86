// Reading JSON that another program wrote.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>

namespace gpushm::plugin::dra {

// What is under these keys, one within the other; null if it is not there.
inline const nlohmann::json& At(const nlohmann::json& json,
                                std::initializer_list<const char*> keys) {
  static const nlohmann::json kNull;
  const nlohmann::json* at = &json;
  for (const char* const key : keys) {
    if (!at->is_object()) return kNull;
    const auto found = at->find(key);
    if (found == at->end()) return kNull;
    at = &*found;
  }
  return *at;
}

}  // namespace gpushm::plugin::dra
