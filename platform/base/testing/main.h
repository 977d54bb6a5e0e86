// The main program of GoogleTest programs (main.cc).
//
// A program has the tests of a whole room, and ctest starts it once for each gpushm_test():
//   --sources=FILE:FILE ...   only the cases that these files define, relative to the tree's root
// Cases that --gtest_filter or GTEST_FILTER leaves out stay out. It fails if a file defines no
// case.
#pragma once

#include <string>
#include <vector>

namespace gpushm::testing {

// A program can also be a process that its tests start: `/proc/self/exe NAME WORD ...`. A static
// object in the file that starts it.
class TestRole {
 public:
  // `main` gets the words after the name, and returns the exit status.
  TestRole(const char* name, int (*main)(const std::vector<std::string>& words));
};

}  // namespace gpushm::testing
