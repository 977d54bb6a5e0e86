// For tests of the C++ headers, also as C++17.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace gpushm::integration {

// What the result has; a test ends at an error.
template <typename R>
auto Must(R result) {
  if (!result) throw std::runtime_error(std::string(result.error().text()));
  return std::move(*result);
}

}  // namespace gpushm::integration
