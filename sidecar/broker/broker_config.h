// The YAML file of a broker that is started by hand. Its errors follow
// contract/annotations/annotations.h: all at once, each with its place, the reason and an example.
//
// Threads: pure functions; any thread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contract/annotations/annotations.h"
#include "contract/protocol/messages.h"
#include "platform/base/log_config.h"
#include "platform/yaml/keyed_reader.h"

namespace gpushm::broker {

// The broker's YAML file.
struct BrokerConfig {
  annotations::PodSpec pod;                            // annotations:
  std::optional<std::vector<std::string>> containers;  // containers:, as listed
  uint64_t pool_bytes = 0;                             // pool:, or what `pod` needs; on each GPU
  bool pool_given = false;                             // whether pool: was given
  std::vector<yaml::GpuChoice> gpus;                   // gpu:; empty for all that are visible
  std::string folder{protocol::kDefaultFolder};
  std::string link;       // link:; empty for the default path, if it exists; or "none"
  std::string pod_uid;    // pod-uid:; may be empty
  bool host_ipc = false;  // host-ipc:, or the annotation gpushm.io/host-ipc
  LogConfig log;

  friend bool operator==(const BrokerConfig&, const BrokerConfig&) = default;
};

// `file_name` is only for messages; the caller has read the file. Absolute `file:` paths are
// accepted.
Result<BrokerConfig> ParseBrokerConfig(std::string_view yaml_text, std::string_view file_name);
yaml::OrErrors<BrokerConfig> ParseBrokerConfigOrErrors(std::string_view yaml_text,
                                                       std::string_view file_name);

// Fails if `config` names GPUs, but not as many as the pod has.
Result<void> CheckGpus(const BrokerConfig& config);

// The keys of the file. Those of `log` have names like "log.level".
std::span<const yaml::KeyInfo> BrokerKeys();

}  // namespace gpushm::broker
