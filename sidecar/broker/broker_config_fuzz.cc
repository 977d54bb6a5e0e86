// Goal: no text crashes the parser of the broker's file, or makes it throw. Method: each input is
// parsed as the file. If it parses, its pool is large enough; if not, each error is one line.
// contract/annotations/annotations_fuzz.cc does the same for the content of `annotations:`.
#include "sidecar/broker/broker_config.h"

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "contract/annotations/sizing.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gpushm;
  using namespace gpushm::broker;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = ParseBrokerConfigOrErrors(text, "broker.yaml");
  if (config) {
    Require(config->pool_bytes >=
            annotations::PoolBytes(config->pod, annotations::FullestGpu(config->pod)));
    return 0;
  }
  Require(!config.error().empty() && config.error().size() <= yaml::kErrorsKept + 1);
  for (const yaml::ConfigError& error : config.error()) {
    Require(!error.reason.empty() && error.line >= 0 && error.column >= 0);
    Require(error.ToString().find('\n') == std::string::npos);
  }
  return 0;
}
