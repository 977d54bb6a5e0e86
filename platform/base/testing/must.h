// For tests, benchmarks and their programs, which have nothing to repair: a failure is thrown, and
// ends what they were doing.
#pragma once

#include <exception>
#include <expected>
#include <string>
#include <type_traits>
#include <utility>

#include "platform/base/status.h"

namespace gpushm::testing {

struct Failure : std::exception {
  explicit Failure(Status why) : status(std::move(why)), text(status.ToString()) {}
  explicit Failure(const std::unexpected<Status>& why) : Failure(why.error()) {}
  Failure(Code code, std::string what) : Failure(Status(code, std::move(what))) {}
  const char* what() const noexcept override { return text.c_str(); }

  const Status status;
  const std::string text;
};

// What the call gave; throws a Failure if it gave nothing.
template <typename T>
T Must(Result<T> result) {
  if (!result) throw Failure(result.error());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace gpushm::testing
