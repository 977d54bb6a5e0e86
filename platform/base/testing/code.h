// Lets tests compare the outcome of a call: EXPECT_EQ(CodeOf(ledger.Drop(lease)), Code::kNotFound).
// A failure shows the error's whole text, not only a number.
#pragma once

#include <ostream>
#include <string>

#include "platform/base/status.h"

namespace gpushm::testing {

// Compared by its code alone; 0 means that the call succeeded.
struct Outcome {
  int code = 0;
  std::string text;

  friend bool operator==(const Outcome& a, int b) { return a.code == b; }
  friend bool operator==(const Outcome& a, Code b) { return a.code == static_cast<int>(b); }
  friend std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
    return out << outcome.code << ", " << outcome.text;
  }
};

template <typename T>
Outcome CodeOf(const Result<T>& result) {
  if (result) return {0, "success"};
  return {static_cast<int>(result.error().code()), result.error().ToString()};
}

}  // namespace gpushm::testing
