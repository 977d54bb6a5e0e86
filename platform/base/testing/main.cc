#include "platform/base/testing/main.h"

#include <fnmatch.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string_view>

namespace gpushm::testing {
namespace {

using Main = int (*)(const std::vector<std::string>& words);

std::map<std::string, Main, std::less<>>& Roles() {
  static std::map<std::string, Main, std::less<>> roles;
  return roles;
}

std::vector<std::string> Split(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(':'));
    if (!part.empty()) parts.emplace_back(part);
    text.remove_prefix(std::min(part.size() + 1, text.size()));
  }
  return parts;
}

// The compiler was given an absolute path, or one relative to the folder of the build.
bool Names(std::string_view file, std::string_view source) {
  return file.ends_with(source) &&
         (file.size() == source.size() || file[file.size() - source.size() - 1] == '/');
}

// Leaves of the filter's cases those that `sources` define; false if one defines none.
bool Choose(const std::vector<std::string>& sources) {
  const std::string filter = ::testing::GTEST_FLAG(filter);
  const size_t minus = filter.find('-');
  const std::vector<std::string> patterns = Split(filter.substr(0, minus));
  const auto matches = [&](const std::string& name) {
    return patterns.empty() || std::ranges::any_of(patterns, [&](const std::string& pattern) {
             return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
           });
  };
  std::vector<bool> found(sources.size());
  std::string chosen;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(i);
    std::string cases;
    bool whole = true;
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(j);
      const auto source = std::ranges::find_if(
          sources, [&](const std::string& each) { return Names(test.file(), each); });
      const std::string name = std::string(suite.name()) + "." + test.name();
      if (source != sources.end()) found[static_cast<size_t>(source - sources.begin())] = true;
      if (source != sources.end() && matches(name)) {
        cases += name + ":";
      } else {
        whole = false;
      }
    }
    chosen += whole ? std::string(suite.name()) + ".*:" : cases;
  }
  // With nothing but what is left out, it would choose all others.
  if (chosen.empty()) chosen = "no case";
  ::testing::GTEST_FLAG(filter) =
      minus == std::string::npos ? chosen : chosen + filter.substr(minus);
  for (size_t i = 0; i < sources.size(); ++i) {
    if (!found[i]) std::fprintf(stderr, "%s defines no case\n", sources[i].c_str());
  }
  return std::ranges::find(found, false) == found.end();
}

}  // namespace

TestRole::TestRole(const char* name, Main main) { Roles().emplace(name, main); }

}  // namespace gpushm::testing

int main(int argc, char** argv) {
  using namespace gpushm::testing;
  if (argc > 1) {
    const auto role = Roles().find(argv[1]);
    if (role != Roles().end()) return role->second({argv + 2, argv + argc});
  }
  testing::InitGoogleTest(&argc, argv);
  constexpr std::string_view kSources = "--sources=";
  if (argc > 1) {
    const std::string_view word = argv[1];
    if (argc > 2 || !word.starts_with(kSources)) {
      std::fprintf(stderr, "%s: unknown argument %s\n", argv[0], argv[argc - 1]);
      return 2;
    }
    if (!Choose(Split(word.substr(kSources.size())))) return 2;
  }
  return RUN_ALL_TESTS();
}
