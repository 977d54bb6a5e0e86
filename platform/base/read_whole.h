// Threads: any.
#pragma once

#include <cstddef>
#include <string>

#include "platform/base/status.h"

namespace gpushm {

// Reads a whole regular file. Follows no link and does not wait for a pipe's writer. kNotFound: it
// does not exist. kCorrupt: it is not a regular file, or longer than max_bytes.
Result<std::string> ReadWhole(const std::string& path, size_t max_bytes);

}  // namespace gpushm
