// Which of several names somebody may have meant, for error messages.
//
// Threads: any; plain functions.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm {

// Levenshtein's distance. Texts are cut at 128 bytes: farther is far enough.
size_t EditDistance(std::string_view a, std::string_view b);

// The nearest of `names`, the first one among equals; empty where there are none.
std::string_view Nearest(std::string_view text, std::span<const std::string_view> names);
std::string_view Nearest(std::string_view text, std::span<const std::string> names);

// Those of `names` that a slip of the hand can have turned into `text`, at most three, the nearest
// ones first: at most a third of the letters differ, or one.
std::vector<std::string_view> Similar(std::string_view text,
                                      std::span<const std::string_view> names);

}  // namespace gpushm
