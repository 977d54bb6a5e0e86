/// What the calls of gpushm.hpp, sync.hpp and tensors.hpp return: a value, or the error that says
/// why there is none. C++17.
///
/// gpushm::Result has the members of std::expected that callers use, in every standard of C++:
/// with std::expected itself, which exists from C++23 on only, an object file that was compiled as
/// C++17 would not link with one that was compiled as C++23.
#ifndef GPUSHM_RESULT_HPP_
#define GPUSHM_RESULT_HPP_

#if !defined(__cplusplus) || __cplusplus < 201703L
#error "gpushm's C++ headers need C++17 (-std=c++17); use gpushm.h instead"
#endif

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "gpushm.h"

namespace gpushm {
inline namespace v0 {

/// The name of a status without its prefix, such as "NOT_FOUND"; "UNKNOWN" for a number that the
/// library does not know.
inline const char* StatusName(gpushm_status status) { return gpushm_status_name(status); }

/// Why a call failed: a copy of gpushm_last_error().
class Error {
 public:
  /// The error of the calling thread's last call that failed.
  static Error Last() {
    const gpushm_error* last = gpushm_last_error();
    return Error(last->status, last->text, last->what, last->remedy);
  }

  Error(gpushm_status status, std::string text, std::string what, std::string remedy)
      : status_(status),
        text_(std::move(text)),
        what_(std::move(what)),
        remedy_(std::move(remedy)) {}

  /// For branches: GPUSHM_TIMEOUT, GPUSHM_NOT_FOUND ...
  gpushm_status status() const { return status_; }
  /// One line for humans: status, cause and remedy.
  const std::string& text() const { return text_; }
  /// The cause alone.
  const std::string& what() const { return what_; }
  /// What to do about it; empty if there is nothing to say.
  const std::string& remedy() const { return remedy_; }

 private:
  gpushm_status status_;
  std::string text_;
  std::string what_;
  std::string remedy_;
};

namespace detail {
/// A value was read from a result that has none: a bug of the program. gpushm throws nothing, so
/// this prints the error and ends the program.
[[noreturn]] inline void NoValue(const Error& error) {
  (void)std::fprintf(stderr, "gpushm: a result without a value was used: %s\n",
                     error.text().c_str());
  std::abort();
}
}  // namespace detail

/// A value, or an Error. Test it before you use the value: value(), * and -> of an error print its
/// text and call std::abort(). error() of a value is undefined.
template <typename T>
class Result {
 public:
  using value_type = T;
  using error_type = Error;

  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit.
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit.

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }

  T& value() & { return Get(*this); }
  const T& value() const& { return Get(*this); }
  T&& value() && { return std::move(Get(*this)); }
  T& operator*() & { return Get(*this); }
  const T& operator*() const& { return Get(*this); }
  T&& operator*() && { return std::move(Get(*this)); }
  T* operator->() { return &Get(*this); }
  const T* operator->() const { return &Get(*this); }
  template <typename Other>
  T value_or(Other&& other) const& {
    return has_value() ? Get(*this) : static_cast<T>(std::forward<Other>(other));
  }
  template <typename Other>
  T value_or(Other&& other) && {
    return has_value() ? std::move(Get(*this)) : static_cast<T>(std::forward<Other>(other));
  }

  const Error& error() const& { return *std::get_if<1>(&state_); }
  Error&& error() && { return std::move(*std::get_if<1>(&state_)); }

 private:
  template <typename Self>
  static auto& Get(Self& self) {
    if (!self.has_value()) detail::NoValue(self.error());
    return *std::get_if<0>(&self.state_);
  }

  std::variant<T, Error> state_;
};

/// Success, or an Error.
template <>
class Result<void> {
 public:
  using value_type = void;
  using error_type = Error;

  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: implicit.

  bool has_value() const { return !error_.has_value(); }
  explicit operator bool() const { return has_value(); }
  void value() const {
    if (error_) detail::NoValue(*error_);
  }
  void operator*() const { value(); }

  const Error& error() const& { return *error_; }
  Error&& error() && { return std::move(*error_); }

 private:
  std::optional<Error> error_;
};

}  // namespace v0
}  // namespace gpushm

#endif  // GPUSHM_RESULT_HPP_
