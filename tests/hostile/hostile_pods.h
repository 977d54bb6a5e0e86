// Kinds of hostile pods. Each is a function that attacks until `stop` is set, and runs in its own
// process. It can reach what a pod can reach: the socket of its own link, the socket of its own
// sidecar, and the plugin's HTTP ports.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

namespace gpushm::hostile {

struct Target {
  std::string link;     // Link of a pod whose sidecar is the attacker's own.
  std::string sidecar;  // Socket of a container in a pod whose sidecar is gpushm's.
  std::string folder;   // Empty folder, only for the attacker, to mount things.
  std::string simulated_state;
  std::string plugin_address = "127.0.0.1";
  int metrics_port = 0;
  int probes_port = 0;
};

using Attack = std::function<void(const Target&, const std::atomic<bool>& stop)>;

struct Kind {
  const char* name;
  bool needs_sidecar;  // False: it needs its link.
  Attack attack;
};
const std::vector<Kind>& Kinds();

}  // namespace gpushm::hostile
