// Writes metrics in Prometheus' formats: its text format 0.0.4 and OpenMetrics 1.0.
//
// It does not use prometheus-cpp's serializer, which supports only 0.0.4. Its MetricFamily holds
// each label name and value as a separate string, which takes four times the bytes of the output
// (docs/design/observability.md has the figures).
//
// Invariants
//   (1) All output is in the catalogue, with the labels that the catalogue names.
//   (2) Families come in the catalogue's order, each once, with one HELP and one TYPE.
//   (3) Any bytes in a label value result in one line of valid UTF-8.
//   (4) A number looks the same in both formats, including bucket bounds, so that a series does not
//       become a different one when the scraper requests the other format.
//
// Threads: one at a time.
#pragma once

#include <prometheus/client_metric.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "plugin/metrics/catalogue.h"

namespace gpushm::plugin {

enum class Format : uint8_t { kText, kOpenMetrics };

// The format that an Accept header requests (RFC 9110, 12.5.1); kText if it is empty or unknown.
Format FormatFor(std::string_view accept);
// For Content-Type; Prometheus 3 refuses an answer without it.
std::string_view ContentType(Format format);

using LabelValues = std::initializer_list<std::string_view>;

class Exposition {
 public:
  // `expected_bytes`: of the whole output, so that it is not copied while it grows.
  explicit Exposition(Format format, size_t expected_bytes = 0);

  // `labels`: the values, in the catalogue's order.
  void Add(Metric metric, LabelValues labels, double value);
  void Add(Metric metric, LabelValues labels, uint64_t value);
  void Add(Metric metric, LabelValues labels, const prometheus::ClientMetric::Histogram& value);

  // Returns the output; call it once.
  std::string Finish();

 private:
  void Begin(Metric metric, LabelValues labels);
  // `more`: one more label, already formatted.
  void Name(const MetricInfo& info, std::string_view suffix, LabelValues labels,
            std::string_view more = {});
  void Line(double value);
  void Line(uint64_t value);

  const Format format_;
  int last_ = -1;
  std::string out_;
};

}  // namespace gpushm::plugin
