// Goal: the catalogue follows the rules of Prometheus' names. plugin/monitoring/monitoring_test.cc
// checks that a running plugin exports exactly what is in it.
#include "plugin/metrics/catalogue.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace gpushm::plugin::metrics {
namespace {

TEST(Catalogue, NamesFollowTheRules) {
  // Abbreviated units (promlint), with which a name must not end.
  const std::set<std::string_view> abbreviated = {"s",  "ms", "us", "ns", "b", "kb", "mb",
                                                  "gb", "m",  "h",  "d",  "c", "hz"};
  std::set<std::string_view> names;
  for (const MetricInfo& info : Metrics()) {
    SCOPED_TRACE(info.name);
    EXPECT_TRUE(names.insert(info.name).second);
    EXPECT_TRUE(info.name.starts_with("gpushm_") || info.name.starts_with("process_"));
    EXPECT_EQ(info.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"), std::string_view::npos);
    EXPECT_EQ(info.name.ends_with("_total"), info.type == MetricType::kCounter);
    EXPECT_FALSE(info.name.ends_with("_count") || info.name.ends_with("_sum") ||
                 info.name.ends_with("_bucket") || info.name.ends_with("_created"));
    EXPECT_FALSE(abbreviated.contains(info.name.substr(info.name.rfind('_') + 1)));
    for (const std::string_view type : {"gauge", "counter", "histogram"}) {
      EXPECT_EQ(info.name.find(type), std::string_view::npos);
    }
  }
}

TEST(Catalogue, LabelsDoNotClashWithTheScraperS) {
  // Labels that Prometheus and its operator add themselves.
  const std::set<std::string_view> taken = {"job",      "instance", "cluster", "service",
                                            "endpoint", "node",     "type",    "zone"};
  for (const MetricInfo& info : Metrics()) {
    SCOPED_TRACE(info.name);
    std::set<std::string_view> seen;
    for (std::string_view rest = info.labels; !rest.empty();) {
      const std::string_view label = rest.substr(0, rest.find(' '));
      EXPECT_FALSE(taken.contains(label)) << label;
      EXPECT_TRUE(seen.insert(label).second) << label;
      rest.remove_prefix(std::min(rest.size(), label.size() + 1));
    }
  }
}

TEST(Catalogue, HelpNeedsNoEscaping) {
  for (const MetricInfo& info : Metrics()) {
    SCOPED_TRACE(info.name);
    EXPECT_EQ(info.help.find_first_of("\\\n\""), std::string_view::npos);
    EXPECT_TRUE(info.help.ends_with("."));
  }
}

}  // namespace
}  // namespace gpushm::plugin::metrics
