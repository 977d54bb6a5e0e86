#include "plugin/metrics/exposition.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace gpushm::plugin::metrics {
namespace {

// Names of GPUs come from the driver. All others come from Kubernetes, which allows ASCII only.
void AppendEscaped(std::string& out, std::string_view value) {
  for (const char c : value) {
    if (c == '\\' || c == '"') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += c < ' ' || c > '~' ? '?' : c;
    }
  }
}

void AppendNumber(std::string& out, double value) {
  if (std::isnan(value)) {
    out += "NaN";
  } else if (std::isinf(value)) {
    out += value > 0 ? "+Inf" : "-Inf";
  } else {
    std::array<char, 32> text{};
    const auto end = std::to_chars(text.data(), text.data() + text.size(), value);
    out.append(text.data(), end.ptr);
  }
}

void AppendNumber(std::string& out, uint64_t value) {
  std::array<char, 24> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value);
  out.append(text.data(), end.ptr);
}

// "1.0", not "1": OpenMetrics requires it, and Prometheus 3 stores both as "1.0".
std::string BoundLabel(double bound) {
  std::string number;
  AppendNumber(number, bound);
  if (std::isfinite(bound) && number.find_first_of(".e") == std::string::npos) number += ".0";
  return "le=\"" + number + "\"";
}

}  // namespace

void Exposition::Begin(Metric metric, LabelValues labels) {
  const MetricInfo& info = InfoOf(metric);
  const auto wanted = static_cast<size_t>(std::ranges::count(info.labels, ' ')) + 1;
  if (labels.size() != (info.labels.empty() ? 0 : wanted)) std::abort();  // A bug in the plugin.
  const int now = static_cast<int>(metric);
  if (now == last_) return;
  if (now < last_) std::abort();  // Invariant 2.
  last_ = now;
  // The catalogue's help texts need no escaping (catalogue_test).
  out_.append("# HELP ").append(info.name).append(" ").append(info.help).append("\n# TYPE ");
  out_.append(info.name).append(" ").append(TypeName(info.type)).append("\n");
}

void Exposition::Name(const MetricInfo& info, std::string_view suffix, LabelValues labels,
                      std::string_view more) {
  out_.append(info.name).append(suffix);
  char separator = '{';
  std::string_view names = info.labels;
  for (const std::string_view value : labels) {
    out_ += std::exchange(separator, ',');
    const size_t end = names.find(' ');
    out_.append(names.substr(0, end)).append("=\"");
    AppendEscaped(out_, value);
    out_ += '"';
    names.remove_prefix(end == std::string_view::npos ? names.size() : end + 1);
  }
  if (!more.empty()) {
    out_ += std::exchange(separator, ',');
    out_ += more;
  }
  out_.append(separator == ',' ? "} " : " ");
}

void Exposition::Line(double value) {
  AppendNumber(out_, value);
  out_ += '\n';
}

void Exposition::Line(uint64_t value) {
  AppendNumber(out_, value);
  out_ += '\n';
}

void Exposition::Add(Metric metric, LabelValues labels, double value) {
  Begin(metric, labels);
  Name(InfoOf(metric), "", labels);
  Line(value);
}

void Exposition::Add(Metric metric, LabelValues labels, uint64_t value) {
  Begin(metric, labels);
  Name(InfoOf(metric), "", labels);
  Line(value);
}

void Exposition::Add(Metric metric, LabelValues labels,
                     const prometheus::ClientMetric::Histogram& value) {
  Begin(metric, labels);
  const MetricInfo& info = InfoOf(metric);
  for (const auto& bucket : value.bucket) {
    Name(info, "_bucket", labels, BoundLabel(bucket.upper_bound));
    Line(bucket.cumulative_count);
  }
  Name(info, "_sum", labels);
  Line(value.sample_sum);
  Name(info, "_count", labels);
  Line(value.sample_count);
}

}  // namespace gpushm::plugin::metrics
