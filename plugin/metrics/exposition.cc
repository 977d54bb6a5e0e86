#include "plugin/metrics/exposition.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>

namespace gpushm::plugin {
namespace {

std::string_view TypeText(MetricType type, Format format) {
  const bool unknown = type == MetricType::kInfo && format == Format::kText;
  return TypeName(unknown ? MetricType::kGauge : type);
}

// OpenMetrics names a family without the suffix of its samples.
std::string_view FamilyName(const MetricInfo& info, Format format) {
  std::string_view name = info.name;
  if (format == Format::kText) return name;
  const std::string_view suffix = info.type == MetricType::kCounter ? "_total"
                                  : info.type == MetricType::kInfo  ? "_info"
                                                                    : "";
  name.remove_suffix(suffix.size());
  return name;
}

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

// OpenMetrics requires "1.0", not "1".
std::string BoundLabel(double bound) {
  std::string number;
  AppendNumber(number, bound);
  if (std::isfinite(bound) && number.find_first_of(".e") == std::string::npos) number += ".0";
  return "le=\"" + number + "\"";
}

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// Takes the text up to `separator` off `text`, and the separator with it.
std::string_view TakeUntil(std::string_view* text, char separator) {
  const size_t end = text->find(separator);
  const std::string_view taken = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + 1);
  return Trim(taken);
}

double Quality(std::string_view value) {
  double quality = 0;
  const auto read = std::from_chars(value.data(), value.data() + value.size(), quality);
  return read.ec == std::errc() ? quality : 0;
}

}  // namespace

Format FormatFor(std::string_view accept) {
  double text = 0;
  double open = 0;
  while (!accept.empty()) {
    std::string_view range = TakeUntil(&accept, ',');
    const std::string_view type = TakeUntil(&range, ';');
    double quality = 1;
    std::string_view version;
    while (!range.empty()) {
      std::string_view parameter = TakeUntil(&range, ';');
      const std::string_view name = TakeUntil(&parameter, '=');
      if (name == "q") quality = Quality(Trim(parameter));
      if (name == "version") version = Trim(parameter);
    }
    // Version 0.0.1 was the draft; what this program writes is the same in it.
    const bool known = version.empty() || version == "1.0.0" || version == "0.0.1";
    if (type == "application/openmetrics-text" && known) open = std::max(open, quality);
    if (type == "text/plain" || type == "text/*" || type == "*/*") text = std::max(text, quality);
  }
  return open > 0 && open >= text ? Format::kOpenMetrics : Format::kText;
}

std::string_view ContentType(Format format) {
  return format == Format::kOpenMetrics
             ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
             : "text/plain; version=0.0.4; charset=utf-8";
}

Exposition::Exposition(Format format, size_t expected_bytes) : format_(format) {
  out_.reserve(expected_bytes);
}

void Exposition::Begin(Metric metric, LabelValues labels) {
  const MetricInfo& info = InfoOf(metric);
  const auto wanted = static_cast<size_t>(std::ranges::count(info.labels, ' ')) + 1;
  if (labels.size() != (info.labels.empty() ? 0 : wanted)) std::abort();  // A bug in the plugin.
  const int now = static_cast<int>(metric);
  if (now == last_) return;
  if (now < last_) std::abort();  // Invariant 2.
  last_ = now;
  const std::string_view name = FamilyName(info, format_);
  // The catalogue's help texts need no escaping (catalogue_test).
  out_.append("# HELP ").append(name).append(" ").append(info.help).append("\n# TYPE ");
  out_.append(name).append(" ").append(TypeText(info.type, format_)).append("\n");
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

std::string Exposition::Finish() {
  if (format_ == Format::kOpenMetrics) out_ += "# EOF\n";
  return std::move(out_);
}

}  // namespace gpushm::plugin
