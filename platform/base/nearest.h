// Finds the names that a user may have meant, for error messages.
//
// Threads: any; plain functions.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gpushm {

// Levenshtein's distance. Texts are cut at 128 bytes, because a larger distance makes no difference
// here.
size_t EditDistance(std::string_view a, std::string_view b);

// The nearest of `names`, the first one among equals; empty if `names` is empty.
std::string_view Nearest(std::string_view text, std::span<const std::string_view> names);
std::string_view Nearest(std::string_view text, std::span<const std::string> names);

// Those of `names` that a typing error can have turned into `text`: at most three, nearest first. A
// name qualifies if at most a third of its letters differ, or one letter.
std::vector<std::string_view> Similar(std::string_view text,
                                      std::span<const std::string_view> names);

}  // namespace gpushm
