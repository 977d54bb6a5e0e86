// gpushm-injector's flags.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "platform/base/log_config.h"
#include "platform/base/status.h"
#include "sidecar/injector/server.h"
#include "sidecar/injector/settings.h"

namespace gpushm::injector {

struct Options {
  Settings settings;
  Server::Options server;
  std::string certificates = "/etc/gpushm/tls";
  int64_t drain_ms = 5000;
  LogConfig log;
  // Of Settings::makes_claims. Empty: where every pod finds it.
  std::string api_server;
  std::string api_credentials;
  bool inject = false;  // Read a manifest instead of serving.
};

// Fails with kInvalidArgument; the error names the flag and a correct value. Returns nullopt if
// help or the version was printed; `exit_code` is then the process' exit code.
Result<std::optional<Options>> ParseOptions(int argc, char** argv, int* exit_code);

}  // namespace gpushm::injector
