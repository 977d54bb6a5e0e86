// Text of another process or of a file, for an error or a log line.
#pragma once

#include <string>
#include <string_view>

namespace gpushm {

// `text` in quotes for a message, as one line of printable ASCII in which other bytes are \xNN.
// Longer text than 96 bytes is cut off and ends in "...".
std::string Quote(std::string_view text);

}  // namespace gpushm
