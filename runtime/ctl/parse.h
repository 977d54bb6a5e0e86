// Parses sizes and times that people type.
#pragma once

#include <cstdint>
#include <string_view>

#include "contract/limits.h"
#include "platform/base/status.h"

namespace gpushm::ctl {

// Bytes, as a Kubernetes quantity: a number, possibly with a fraction, and one of Ki Mi Gi Ti Pi Ei
// (powers of 1024) or k M G T P E (of 1000). Signs and exponents are not accepted, because nobody
// types them. The value must be whole, at least 1 and at most limits::kBufferBytes. It is computed
// exactly, without floating point.
Result<uint64_t> ParseBytes(std::string_view text);

// Milliseconds: "10s", "500ms", "1m30s", "1.5h". A bare number is seconds. The limit is 365 days;
// fractions of a millisecond are rounded up.
Result<int64_t> ParseDurationMs(std::string_view text);

}  // namespace gpushm::ctl
