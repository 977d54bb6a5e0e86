#include "sidecar/broker/options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "contract/annotations/sizing.h"
#include "contract/limits.h"
#include "contract/protocol/link.h"
#include "platform/base/memory_limit.h"
#include "platform/base/version.h"
#include "platform/driver/cuda_api.h"
#include "platform/yaml/keyed_reader.h"
#include "platform/yaml/quantity.h"

namespace gpushm::broker {
namespace {

struct Flags {
  BrokerOptions options;  // As far as flags set them directly.
  std::string file;
  std::string folder;
  std::vector<std::string> containers;
  std::string pool;
  std::vector<std::string> gpus;
  std::string pod_uid;
  std::string link;
  bool host_ipc = false;
  std::string log_level;
  std::string log_format;
};

// The whole content of a small file.
Result<std::string> ReadFile(const std::string& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in && errno != 0 && errno != ENOENT) {
    return FailSystem(errno, Concat("--config ", path),
                      Concat("name a file that user ", getuid(), " can read"));
  }
  if (!in) {
    return Fail(Code::kNotFound, Concat("--config ", path, " does not exist"),
                "name a file that exists, for example --config /etc/gpushm/broker.yaml");
  }
  std::string text;
  text.resize(yaml::kConfigBytes + 1);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) {  // Docker makes a folder where a mounted file is missing.
    return FailSystem(errno != 0 ? errno : EIO, Concat("--config ", path),
                      "name a file; if a container mounts it, check that it exists on the host");
  }
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > yaml::kConfigBytes) {
    return Fail(Code::kExhausted,
                Concat("--config ", path, " has more than ", yaml::kConfigBytes, " bytes"));
  }
  return text;
}

Result<BrokerConfig> ReadBase(const Flags& flags) {
  BrokerConfig base;
  if (!flags.file.empty()) {
    const Result<std::string> text = ReadFile(flags.file);
    if (!text) return std::unexpected(text.error());
    Result<BrokerConfig> parsed = ParseBrokerConfig(*text, flags.file);
    if (!parsed) return parsed;
    base = std::move(*parsed);
  }
  const char* const buffers = std::getenv(std::string(annotations::kBuffersVariable).c_str());
  if (buffers != nullptr && *buffers != '\0') {  // Empty counts as unset, as for GPUSHM_DRIVER.
    annotations::ParseOptions parse;
    parse.containers = base.containers;
    if (!flags.containers.empty()) parse.containers = flags.containers;
    Result<annotations::PodSpec> pod = annotations::ParseBuffersEnvironment(buffers, parse);
    if (!pod) return std::unexpected(pod.error().WithContext(annotations::kBuffersVariable));
    base.pod = std::move(*pod);
    if (!base.pool_given) {
      base.pool_bytes = annotations::PoolBytes(base.pod, annotations::FullestGpu(base.pod));
    }
  }
  return base;
}

Result<void> ApplyFlags(const Flags& flags, BrokerConfig* config) {
  if (!flags.folder.empty()) config->folder = flags.folder;
  if (!flags.containers.empty()) config->containers = flags.containers;
  if (!flags.pod_uid.empty()) config->pod_uid = flags.pod_uid;
  config->host_ipc = config->host_ipc || flags.host_ipc || config->pod.host_ipc;
  if (!flags.pool.empty()) {
    const auto bytes = yaml::ParseBytes(flags.pool);
    if (!bytes) {
      return Fail(Code::kInvalidArgument, Concat("--pool \"", flags.pool, "\": ", bytes.error()),
                  "write it as --pool 8Gi");
    }
    config->pool_bytes = *bytes;
    config->pool_given = true;
  }
  if (!flags.link.empty()) config->link = flags.link;
  if (!flags.gpus.empty()) config->gpus.clear();
  for (const std::string& gpu : flags.gpus) {
    const auto choice = yaml::ParseGpu(gpu);
    if (!choice) {
      return Fail(Code::kInvalidArgument, Concat("--gpu: ", choice.error()),
                  "write an index or a UUID: --gpu 0, --gpu GPU-1b2c...");
    }
    config->gpus.push_back(*choice);
  }
  if (!flags.log_format.empty()) {
    config->log.format = flags.log_format == "json" ? LogFormat::kJson : LogFormat::kText;
  }
  if (!flags.log_level.empty()) {
    config->log.level = flags.log_level == "debug"     ? LogLevel::kDebug
                        : flags.log_level == "warning" ? LogLevel::kWarning
                        : flags.log_level == "error"   ? LogLevel::kError
                                                       : LogLevel::kInfo;
  }
  return {};
}

// If the plugin's link folder is mounted, there is a plugin. With "none" the folder is ignored.
std::string LinkFolder(const std::string& configured) {
  if (configured == "none") return "";
  if (!configured.empty()) return configured;
  return access(protocol::kDefaultLinkFolder, F_OK) == 0 ? protocol::kDefaultLinkFolder : "";
}

std::string OwnProgram() {
  std::array<char, 4096> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  return length > 0 ? std::string(path.data(), static_cast<size_t>(length))
                    : BrokerOptions().program;
}

// The injector sets these through the downward API.
std::string PodOfEnvironment() {
  const char* const pod_namespace = std::getenv("GPUSHM_POD_NAMESPACE");
  const char* const name = std::getenv("GPUSHM_POD_NAME");
  return pod_namespace == nullptr || name == nullptr ? "" : Concat(pod_namespace, '/', name);
}

void Declare(CLI::App& app, Flags* flags) {
  app.set_version_flag("--version", std::string(kVersion));
  app.add_option("--config", flags->file,
                 "YAML file with the settings; see docs/reference/annotations.md");
  app.add_option("--folder", flags->folder,
                 "Folder with a socket for each container (default /run/gpushm)");
  app.add_option("--container", flags->containers,
                 "A container to serve, in a subfolder of its name; may be repeated. "
                 "Without it there is one socket in the folder itself");
  app.add_option("--pool", flags->pool,
                 "Bytes that the buffers may take on each GPU, for example 8Gi");
  app.add_option("--gpu", flags->gpus,
                 "The GPU: index or UUID. It is needed only if several are visible; with "
                 "gpushm.io/gpus it is repeated");
  app.add_option("--link", flags->link,
                 "Folder of the plugin's socket (default /run/gpushm-link, if it exists), or none");
  app.add_option(
      "--cuda-ipc", flags->options.cuda_ipc_folder,
      "Folder into which libgpushm-cudaipc.so is copied, with an ld.so.preload that names "
      "it; other containers see it at /run/gpushm-cuda-ipc (none)");
  app.add_option("--mps-folder", flags->options.mps_folder,
                 "Folder to make for gpushm-mps of the same pod; every uid may write there (none)");
  app.add_option("--pod-uid", flags->pod_uid, "The pod's UID, for --host-ipc");
  app.add_flag("--host-ipc", flags->host_ipc, "Also serve hostIPC pods of the node, in /dev/shm");
  app.add_option("--host-dir", flags->options.host_dir, "Folder to use instead of /dev/shm");
  app.add_option("--log-level", flags->log_level, "Log level: debug, info, warning or error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  app.add_option("--log-format", flags->log_format, "Log format: text or json")
      ->check(CLI::IsMember({"text", "json"}));
  app.add_option("--start-timeout-ms", flags->options.start_timeout_ms,
                 "How long the driver may take for each step of the start, in milliseconds")
      ->check(CLI::Range(int64_t{1}, int64_t{3'600'000}));
  app.add_option("--drain-timeout-ms", flags->options.drain_timeout_ms,
                 "How long to wait for clients after SIGTERM, in milliseconds")
      ->check(CLI::Range(int64_t{0}, int64_t{3'600'000}));
}

}  // namespace

Result<std::optional<BrokerOptions>> ParseOptions(int argc, char** argv, int* exit_code) {
  CLI::App app(
      "gpushm-broker owns the GPU buffers of a pod and gives them to its containers by name.\n"
      "Environment: GPUSHM_BUFFERS (annotations as YAML), GPUSHM_DRIVER (folder of libcuda.so.1),\n"
      "GPUSHM_POD_NAMESPACE and GPUSHM_POD_NAME (the pod's name, for the log).");
  Flags flags;
  Declare(app, &flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {
    *exit_code = app.exit(done);
    return std::optional<BrokerOptions>();
  } catch (const CLI::ParseError& error) {
    return Fail(Code::kInvalidArgument, error.what(),
                "run gpushm-broker --help for a list of the flags");
  }
  Result<BrokerConfig> config = ReadBase(flags);
  if (!config) return std::unexpected(config.error());
  if (auto applied = ApplyFlags(flags, &*config); !applied) {
    return std::unexpected(applied.error());
  }
  if (auto as_many = CheckGpus(*config); !as_many) {
    return std::unexpected(as_many.error());
  }
  BrokerOptions options = std::move(flags.options);
  options.config = std::move(*config);
  options.driver_folder = DriverFolderFromEnvironment();
  options.link_folder = LinkFolder(options.config.link);
  options.program = OwnProgram();
  // The chart may have decided it, which no annotation says.
  if (!options.mps_folder.empty()) options.config.pod.mps.wanted = true;
  options.pod = PodOfEnvironment();
  return std::optional(std::move(options));
}

}  // namespace gpushm::broker
