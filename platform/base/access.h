// How a process maps memory: for the driver, the wire and the library. The numbers are those of
// gpushm_access.
#pragma once

#include <cstdint>

namespace gpushm {

namespace types {
enum Access : uint32_t { kRead = 1, kReadWrite = 2 };
}  // namespace types

using types::Access;

}  // namespace gpushm
