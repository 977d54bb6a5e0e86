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
};

// kInvalidArgument, naming the flag and a correct value. Nothing: help or version was printed, and
// `exit_code` says how to end.
Result<std::optional<Options>> ParseOptions(int argc, char** argv, int* exit_code);

}  // namespace gpushm::injector
