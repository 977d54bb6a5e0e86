// The test vectors of docs/design/digest.md, and the content that they are of.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace gpushm::testing {

// Byte i is i mod 251.
inline std::vector<std::byte> Pattern(size_t bytes) {
  std::vector<std::byte> pattern(bytes);
  for (size_t i = 0; i < bytes; ++i) pattern[i] = static_cast<std::byte>(i % 251);
  return pattern;
}

// The rows of the table whose head has `title` as its last column: what is digested, and the
// digest.
inline std::vector<std::pair<std::string, std::string>> Vectors(const std::string& title) {
  std::vector<std::pair<std::string, std::string>> rows;
  const char* const page = std::getenv("GPUSHM_DIGEST_PAGE");  // Set by ctest.
  std::ifstream file(page == nullptr ? "docs/design/digest.md" : page);
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with(" | " + title + " |")) {
      inside = true;
      std::getline(file, line);  // The line below the head.
    } else if (inside && line.starts_with("| ")) {
      const size_t middle = line.rfind(" | `");
      rows.emplace_back(line.substr(2, middle - 2),
                        line.substr(middle + 4, line.size() - middle - 7));
    } else {
      inside = false;
    }
  }
  return rows;
}

}  // namespace gpushm::testing
