// Goal: Prometheus can read the output whatever is in a label.
#include "plugin/metrics/exposition.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <prometheus/histogram.h>

#include <cmath>
#include <limits>
#include <string>

#include "plugin/metrics/collector.h"

namespace gpushm::plugin::metrics {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Exposition, TextHasOneHeadForEachFamily) {
  Exposition out;
  out.Add(Metric::kGpuHealthy, {"GPU-a"}, uint64_t{1});
  out.Add(Metric::kGpuHealthy, {"GPU-b"}, uint64_t{0});
  out.Add(Metric::kGpuEnergy, {"GPU-a"}, 1.5);
  const std::string help(InfoOf(Metric::kGpuHealthy).help);
  const std::string energy(InfoOf(Metric::kGpuEnergy).help);
  EXPECT_EQ(out.Finish(), "# HELP gpushm_gpu_healthy " + help +
                              "\n# TYPE gpushm_gpu_healthy gauge\n"
                              "gpushm_gpu_healthy{gpu_uuid=\"GPU-a\"} 1\n"
                              "gpushm_gpu_healthy{gpu_uuid=\"GPU-b\"} 0\n"
                              "# HELP gpushm_gpu_energy_joules_total " +
                              energy +
                              "\n# TYPE gpushm_gpu_energy_joules_total counter\n"
                              "gpushm_gpu_energy_joules_total{gpu_uuid=\"GPU-a\"} 1.5\n");
}

TEST(Exposition, HistogramsAreCumulativeAndTheirBoundsFloats) {
  prometheus::Histogram histogram({0.25, 1, 10});
  histogram.Observe(0.1);
  histogram.Observe(0.5);
  histogram.Observe(100);
  Exposition out;
  out.Add(Metric::kPluginAllocationDuration, {"gpushm.io/memory"}, histogram.Collect().histogram);
  const std::string name = "gpushm_plugin_allocation_duration_seconds";
  const std::string label = "resource=\"gpushm.io/memory\"";
  EXPECT_THAT(out.Finish(),
              HasSubstr(name + "_bucket{" + label + ",le=\"0.25\"} 1\n" + name + "_bucket{" +
                        label + ",le=\"1.0\"} 2\n" + name + "_bucket{" + label +
                        ",le=\"10.0\"} 2\n" + name + "_bucket{" + label + ",le=\"+Inf\"} 3\n" +
                        name + "_sum{" + label + "} 100.6\n" + name + "_count{" + label + "} 3\n"));
}

TEST(Exposition, HistogramsMayHaveNoLabelOfTheirOwn) {
  Exposition out;
  out.Add(Metric::kBrokerReadyDuration, {}, prometheus::Histogram({1}).Collect().histogram);
  const std::string page = out.Finish();
  EXPECT_THAT(page, HasSubstr("gpushm_broker_ready_duration_seconds_bucket{le=\"1.0\"} 0\n"));
  EXPECT_THAT(page, HasSubstr("gpushm_broker_ready_duration_seconds_count 0\n"));
}

TEST(Exposition, AnyBytesOfALabelStayInTheirLine) {
  Exposition out;
  out.Add(Metric::kGpuHealthy, {"a\"b\\c\nd\xff\x01 e\r"}, uint64_t{1});
  EXPECT_THAT(out.Finish(), HasSubstr("{gpu_uuid=\"a\\\"b\\\\c\\nd?? e?\"} 1\n"));
}

TEST(Exposition, NumbersAreExact) {
  Exposition out;
  out.Add(Metric::kGpuMemoryTotal, {"a"}, uint64_t{150'754'820'096});
  out.Add(Metric::kGpuMemoryTotal, {"b"}, std::numeric_limits<uint64_t>::max());
  out.Add(Metric::kGpuUtilization, {"a"}, 0.93);
  out.Add(Metric::kGpuUtilization, {"b"}, std::nan(""));
  out.Add(Metric::kGpuUtilization, {"c"}, std::numeric_limits<double>::infinity());
  const std::string page = out.Finish();
  for (const char* const value :
       {"} 150754820096\n", "} 18446744073709551615\n", "} 0.93\n", "} NaN\n", "} +Inf\n"}) {
    EXPECT_THAT(page, HasSubstr(value));
  }
}

TEST(ExpositionDeathTest, WhatTheCatalogueDoesNotHaveIsABug) {
  EXPECT_DEATH(
      {
        Exposition out;
        out.Add(Metric::kGpuHealthy, {"a", "b"}, uint64_t{1});
      },
      "");
  EXPECT_DEATH(
      {
        Exposition out;
        out.Add(Metric::kGpuUtilization, {"a"}, 1.0);
        out.Add(Metric::kGpuHealthy, {"a"}, uint64_t{1});
      },
      "");
}

// Goal: pods without MPS, and what nobody measured, have no series.
TEST(WriteMps, OnlyWhatIsKnown) {
  NodeView node;
  node.pools.resize(3);
  const char* const names[] = {"plain", "served", "avoided"};
  for (size_t i = 0; i < 3; ++i) node.pools[i].pod = {"n", names[i]};
  node.pools[1].mps = {.ready = true, .clients = 3};
  node.pools[2].mps = {.daemon_restarts = 2, .outside_processes = 5};
  Exposition out;
  WritePools(node, &out);
  const std::string text = out.Finish();
  EXPECT_THAT(text, Not(HasSubstr("gpushm_mps_ready{namespace=\"n\",pod=\"plain\"")));
  EXPECT_THAT(text,
              HasSubstr("gpushm_mps_ready{namespace=\"n\",pod=\"served\",gpu_uuid=\"\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("gpushm_mps_ready{namespace=\"n\",pod=\"avoided\",gpu_uuid=\"\"} 0\n"));
  EXPECT_THAT(text, Not(HasSubstr("gpushm_mps_outside_processes{namespace=\"n\",pod=\"served\"")));
  EXPECT_THAT(
      text,
      HasSubstr("gpushm_mps_outside_processes{namespace=\"n\",pod=\"avoided\",gpu_uuid=\"\"} 5\n"));
}

}  // namespace
}  // namespace gpushm::plugin::metrics
