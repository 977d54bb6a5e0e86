// Writes metrics in Prometheus' text format 0.0.4.
//
// It does not use prometheus-cpp's serializer, whose MetricFamily holds each label name and value
// as a separate string, which takes four times the bytes of the output
// (docs/design/observability.md has the figures).
//
// Invariants
//   (1) All output is in the catalogue, with the labels that the catalogue names.
//   (2) Families come in the catalogue's order, each once, with one HELP and one TYPE.
//   (3) Any bytes in a label value result in one line of valid UTF-8.
//
// Threads: one at a time.
#pragma once

#include <prometheus/client_metric.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "plugin/metrics/catalogue.h"

namespace gpushm::plugin::metrics {

// For Content-Type; Prometheus 3 refuses an answer without it.
inline constexpr std::string_view kExpositionType = "text/plain; version=0.0.4; charset=utf-8";

using LabelValues = std::initializer_list<std::string_view>;

class Exposition {
 public:
  // `expected_bytes`: of the whole output, so that it is not copied while it grows.
  explicit Exposition(size_t expected_bytes = 0) { out_.reserve(expected_bytes); }

  // `labels`: the values, in the catalogue's order.
  void Add(Metric metric, LabelValues labels, double value);
  void Add(Metric metric, LabelValues labels, uint64_t value);
  void Add(Metric metric, LabelValues labels, const prometheus::ClientMetric::Histogram& value);

  // Returns the output; call it once.
  std::string Finish() { return std::move(out_); }

 private:
  void Begin(Metric metric, LabelValues labels);
  // `more`: one more label, already formatted.
  void Name(const MetricInfo& info, std::string_view suffix, LabelValues labels,
            std::string_view more = {});
  void Line(double value);
  void Line(uint64_t value);

  int last_ = -1;
  std::string out_;
};

}  // namespace gpushm::plugin::metrics
