// How the binding calls libgpushm: with the GIL released, with errors as Python's exceptions, and
// with waits that Ctrl-C can interrupt.
//
// Threads: with the GIL held, unless a comment says otherwise.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "driver.h"
#include "library.h"
#include "resource.h"

namespace gpushm::python {

namespace nb = nanobind;

template <typename T>
T Sized() {
  T value;
  GPUSHM_INIT(&value);
  return value;
}

// Raises the exception of the last failure of this thread (gpushm/errors.py).
[[noreturn]] void RaiseLast(gpushm_status status);
// Raises an exception that libgpushm would have raised: for refusals of the binding itself.
[[noreturn]] void Raise(gpushm_status status, const std::string& what, const std::string& remedy);

inline void Check(gpushm_status status) {
  if (status != GPUSHM_OK) RaiseLast(status);
}

// Calls without the GIL. The caller may look at gpushm_last_error afterwards: it is the thread's.
template <typename Call>
auto Released(Call&& call) {
  const nb::gil_scoped_release released;
  const BesideCaptures beside;
  return call();
}

// A timeout of Python's: seconds, 0 not to wait, None to wait without a limit.
using Timeout = std::optional<double>;

// As libgpushm has it. A limit that Python does not give is a year.
inline int64_t Milliseconds(Timeout timeout) {
  if (timeout && !(*timeout >= 0)) throw nb::value_error("invalid timeout: must not be negative");
  if (timeout && *timeout == 0) return GPUSHM_DONT_WAIT;
  constexpr double kYear = 365. * 24 * 3600 * 1000;
  return static_cast<int64_t>(std::ceil(std::min(timeout ? *timeout * 1000 : kYear, kYear)));
}

// Calls `call(timeout_ms)` until its status is not TIMEOUT, or `timeout` has passed. It waits in
// short steps: between them, Python handles signals, and what arrays gave up is given back.
// `call` must be one that can simply be repeated after TIMEOUT.
template <typename Call>
gpushm_status Wait(Timeout timeout, Call&& call) {
  constexpr int64_t kStepMs = 200;
  const int64_t limit_ms = Milliseconds(timeout);
  if (limit_ms == GPUSHM_DONT_WAIT) return Released([&] { return call(int64_t{-1}); });
  // Most calls need no second step, and the first one reads no clock.
  std::optional<std::chrono::steady_clock::time_point> end;
  for (int64_t left = limit_ms;;) {
    const int64_t step = std::clamp<int64_t>(left, 1, kStepMs);
    const gpushm_status status = Released([&] { return call(step); });
    if (status != GPUSHM_TIMEOUT || left <= kStepMs) return status;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    Collect();
    const auto now = std::chrono::steady_clock::now();
    if (!end) end = now + std::chrono::milliseconds(limit_ms - step);
    left = std::chrono::duration_cast<std::chrono::milliseconds>(*end - now).count();
  }
}

}  // namespace gpushm::python
