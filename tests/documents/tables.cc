#include <span>
#include <string>
#include <string_view>

#include "contract/annotations/keys.h"
#include "plugin/config/plugin_config.h"
#include "plugin/inventory/xids.h"
#include "plugin/metrics/catalogue.h"
#include "sidecar/broker/broker_config.h"
#include "tests/documents/documents.h"

namespace gpushm::documents {
namespace {

using plugin::inventory::XidEffect;
using plugin::inventory::XidInfo;
using yaml::KeyInfo;

// What every row of a reference document says of a thing that is not promised.
std::string MeaningOf(std::string_view meaning, bool experimental) {
  return Concat(experimental ? "Experimental. " : "", meaning);
}

std::string KeyTable(std::span<const KeyInfo> keys) {
  std::string out = "| key | value | default | meaning | example |\n|---|---|---|---|---|\n";
  for (const KeyInfo& key : keys) {
    std::string example(key.example);
    if (const size_t at = example.find("$container"); at != std::string::npos) {
      example.replace(at, std::string_view("$container").size(), "trainer");
    }
    const std::string_view unset = key.default_value.empty() ? "-" : key.default_value;
    out += Concat("| `", key.name, key.variable, "` | ", key.type, " | ", unset, " | ",
                  MeaningOf(key.meaning, key.experimental), " | `", example, "` |\n");
  }
  return out;
}

std::string MetricTable() {
  std::string out = "| metric | type | labels | meaning |\n|---|---|---|---|\n";
  for (const plugin::metrics::MetricInfo& info : plugin::metrics::Metrics()) {
    std::string labels(info.labels);
    for (size_t at = 0; (at = labels.find(' ', at)) != std::string::npos; at += 2) {
      labels.replace(at, 1, ", ");
    }
    out += Concat("| `", info.name, "` | ", plugin::metrics::TypeName(info.type), " | ", labels,
                  " | ", MeaningOf(info.help, info.experimental), " |\n");
  }
  return out;
}

std::string_view EffectName(XidEffect effect) {
  switch (effect) {
    case XidEffect::kNone:
      return "none";
    case XidEffect::kAsk:
      return "as the driver says";
    case XidEffect::kReset:
      return "unhealthy";
    case XidEffect::kUnknown:
      return "unhealthy for a minute";
  }
  return "?";
}

std::string XidTable() {
  std::string out = "| XID | effect | NVIDIA's action | meaning |\n|---|---|---|---|\n";
  const auto add = [&](const std::string& number, const XidInfo& info) {
    out += Concat("| ", number, " | ", EffectName(info.effect), " | ", info.action, " | ",
                  info.meaning, " |\n");
  };
  for (const XidInfo& info : plugin::inventory::Xids()) {
    add(info.last == info.first ? std::to_string(info.first) : Concat(info.first, "-", info.last),
        info);
  }
  add("any other", plugin::inventory::FindXid(UINT64_MAX));
  return out;
}

}  // namespace

const std::map<std::string, std::function<std::string()>>& Tables() {
  static const std::map<std::string, std::function<std::string()>> tables = {
      {"annotations", [] { return KeyTable(annotations::AnnotationKeys()); }},
      {"buffer", [] { return KeyTable(annotations::BufferKeys()); }},
      {"signal", [] { return KeyTable(annotations::SignalKeys()); }},
      {"broker", [] { return KeyTable(broker::BrokerKeys()); }},
      {"plugin", [] { return KeyTable(plugin::config::PluginKeys()); }},
      {"metrics", MetricTable},
      {"xids", XidTable},
  };
  return tables;
}

}  // namespace gpushm::documents
