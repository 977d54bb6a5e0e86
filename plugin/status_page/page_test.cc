// Checks what the browser's tests (tests/page) cannot: that the joined page is complete in C++.
#include "plugin/status_page/page.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <string>

namespace gpushm::plugin::status_page {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(StatusPage, IsWholeAndSelfContained) {
  const std::string page(StatusPage());
  EXPECT_THAT(page, StartsWith("<!DOCTYPE html>"));
  EXPECT_THAT(page, EndsWith("</html>\n"));
  EXPECT_THAT(page, HasSubstr("refresh();\n</script>"));
  EXPECT_THAT(page, Not(HasSubstr("@page.")));
  for (const char* outside : {"://", "src=", "<link", "innerHTML", "eval("}) {
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  }
}

TEST(StatusPageCsp, AllowsOneStyleAndOneScript) {
  const std::string policy(StatusPageCsp());
  EXPECT_THAT(policy, StartsWith("default-src 'none'; script-src 'sha256-"));
  EXPECT_THAT(policy, HasSubstr("; style-src 'sha256-"));
  EXPECT_THAT(policy, HasSubstr("; connect-src 'self'; "));
  EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
  EXPECT_THAT(policy, Not(HasSubstr("\n")));
}

}  // namespace
}  // namespace gpushm::plugin::status_page
