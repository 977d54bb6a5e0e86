// What people type for sizes and times.
#pragma once

#include <cstdint>
#include <string_view>

#include "contract/limits.h"
#include "platform/base/status.h"

namespace gpushm::ctl {

// Bytes, as a Kubernetes quantity: a number, with a fraction if need be, and one of Ki Mi Gi Ti Pi
// Ei (powers of 1024) or k M G T P E (of 1000); no sign and no exponent, which nobody types. The
// value must be whole, at least 1 and at most limits::kBufferBytes. Exact: no floating point.
Result<uint64_t> ParseBytes(std::string_view text);

// Milliseconds: "10s", "500ms", "1m30s", "1.5h"; a bare number is seconds. At most 365 days;
// fractions of a millisecond are rounded up.
Result<int64_t> ParseDurationMs(std::string_view text);

}  // namespace gpushm::ctl
