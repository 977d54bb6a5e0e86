#include "sidecar/injector/options.h"

#include <CLI/CLI.hpp>
#include <functional>
#include <utility>
#include <vector>

#include "contract/annotations/sizing.h"
#include "platform/base/version.h"
#include "platform/yaml/config_error.h"
#include "platform/yaml/quantity.h"

namespace gpushm::injector {
namespace {

using Parse = std::expected<uint64_t, std::string> (*)(std::string_view);

// A flag whose value is a Kubernetes quantity.
void AddQuantity(CLI::App& app, const std::string& name, Parse parse, uint64_t* value,
                 const std::string& help) {
  app.add_option_function<std::string>(
      name,
      [=](const std::string& text) {
        const auto parsed = parse(text);
        if (!parsed) throw CLI::ValidationError(name, parsed.error());
        if (*parsed == 0) {
          throw CLI::ValidationError(
              name, Concat(yaml::Quote(text), " is zero; must be greater than zero"));
        }
        *value = *parsed;
      },
      help);
}

void Declare(CLI::App& app, Options* options) {
  Settings& settings = options->settings;
  app.set_version_flag("--version", std::string(kVersion));
  app.add_option("--port", options->server.port, "HTTPS port for the API server (8443)")
      ->check(CLI::Range(0, 65535));
  app.add_option("--http-port", options->server.http_port,
                 "Plain HTTP port for healthz, readyz and metrics (8080)")
      ->take_last()
      ->check(CLI::Range(0, 65535));
  app.add_option("--address", options->server.address, "Address to listen on (all)");
  app.add_option(
      "--certificates", options->certificates,
      "Folder with tls.crt and tls.key, which are read again when they change (/etc/gpushm/tls)");
  app.add_option("--sidecar-image", settings.sidecar_image, "Image of the sidecar")->required();
  app.add_option("--sidecar-pull-policy", settings.pull_policy,
                 "Pull policy of the sidecar's image (IfNotPresent)")
      ->check(CLI::IsMember({"Always", "IfNotPresent", "Never"}));
  app.add_option("--sidecar-pull-secret", settings.pull_secrets,
                 "Secret to add to the imagePullSecrets of pods; may be repeated");
  app.add_option("--toleration", settings.tolerations,
                 "Key of a taint that pods with a sidecar tolerate; may be repeated");
  AddQuantity(app, "--sidecar-cpu", yaml::ParseMilliCpus, &settings.cpu_millis,
              "CPU that a sidecar requests (50m)");
  AddQuantity(app, "--sidecar-cpu-limit", yaml::ParseMilliCpus, &settings.cpu_limit_millis,
              "CPU limit of a sidecar, and its request in pods of QoS class Guaranteed (500m)");
  AddQuantity(app, "--sidecar-memory", yaml::ParseBytes, &settings.memory_bytes,
              "Host memory request and limit of a sidecar (64Mi)");
  AddQuantity(app, "--loader-cpu", yaml::ParseMilliCpus, &settings.loader_cpu_millis,
              "CPU that a container which loads a file requests (50m)");
  AddQuantity(app, "--loader-cpu-limit", yaml::ParseMilliCpus, &settings.loader_cpu_limit_millis,
              "CPU limit of such a container, and its request in pods of QoS class Guaranteed (2)");
  AddQuantity(app, "--loader-memory", yaml::ParseBytes, &settings.loader_memory_bytes,
              "Host memory that such a container requests (32Mi)");
  AddQuantity(app, "--loader-memory-limit", yaml::ParseBytes, &settings.loader_memory_limit_bytes,
              "Host memory limit of such a container, and its request in pods of QoS class "
              "Guaranteed (640Mi)");
  AddQuantity(app, "--unit", yaml::ParseBytes, &settings.unit_bytes,
              "GPU memory of one gpushm.io/memory; must match the plugin's (1Gi)");
  AddQuantity(app, "--max-pod-memory", yaml::ParseBytes, &settings.max_pod_bytes,
              "GPU memory of the cluster's largest GPU minus the plugin's reserve; "
              "a pod that requests more is denied (no limit)");
  app.add_option("--gpu-count-label", settings.gpu_count_label,
                 "Key of the nodes' label with the number of their GPUs, such as "
                 "nvidia.com/gpu.count; pods of several GPUs go only to nodes that have so many "
                 "(none)");
  app.add_option_function<std::string>(
         "--largest-free",
         [&settings](const std::string& what) {
           settings.largest_free = what == "prefer" ? LargestFree::kPrefer : LargestFree::kIgnore;
         },
         "What the nodes' label gpushm.io/largest-free means for pods: prefer nodes with room, or "
         "ignore it (ignore)")
      ->check(CLI::IsMember({"ignore", "prefer"}));
  app.add_option(
      "--denied-runtime-class", settings.denied_runtime_classes,
      "Pattern for names of RuntimeClasses, such as kata*, that run containers in a virtual "
      "machine or on a user-space kernel; pods that use them are denied; may be repeated");
  app.add_option_function<std::string>(
         "--allocation",
         [&settings](const std::string& word) {
           settings.allocation = word == "dra" ? annotations::Allocation::kDra
                                               : annotations::Allocation::kDevicePlugin;
         },
         "How pods get their GPU memory if neither they nor their namespace say it: device-plugin "
         "or dra (device-plugin)")
      ->check(CLI::IsMember({"device-plugin", "dra"}));
  app.add_flag(
      "--claims", settings.makes_claims,
      "Make ResourceClaimTemplates for pods with the allocation dra; needs the right to get "
      "and create them");
  app.add_option(
      "--api-server", options->api_server,
      "Address of the API server for --claims, such as 10.96.0.1:443 (that of every pod)");
  app.add_option("--api-credentials", options->api_credentials,
                 "Folder with token and ca.crt for --claims (that of the pod's service account)");
  app.add_flag(
      "--coexist", settings.coexist,
      "Allow nvidia.com/gpu in containers that have gpushm.io/attach; must match the plugin's");
  app.add_flag(
      "--mps", settings.mps,
      "Run pods under MPS that do not say gpushm.io/mps, if the uid of their containers is "
      "known");
  app.add_option_function<std::string>(
         "--uid", [&settings](const std::string& who) { settings.assign_uid = who == "random"; },
         "Who assigns the uid of sidecars: random (the injector) or platform (random)")
      ->check(CLI::IsMember({"random", "platform"}));
  app.add_option("--host-ipc-group", settings.host_ipc_group,
                 "Group of the sidecars of hostIPC pods (65532)")
      ->check(CLI::Range(int64_t{1}, int64_t{2'147'483'647}));
  app.add_option("--drain-ms", options->drain_ms,
                 "How long calls are still answered after SIGTERM, in milliseconds (5000)")
      ->check(CLI::Range(int64_t{0}, int64_t{600'000}));
  app.add_option_function<std::string>(
         "--log-level",
         [options](const std::string& level) {
           options->log.level = level == "debug"     ? LogLevel::kDebug
                                : level == "warning" ? LogLevel::kWarning
                                : level == "error"   ? LogLevel::kError
                                                     : LogLevel::kInfo;
         },
         "Log level: debug, info, warning or error (info)")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  app.add_option_function<std::string>(
         "--log-format",
         [options](const std::string& format) {
           options->log.format = format == "json" ? LogFormat::kJson : LogFormat::kText;
         },
         "Log format: text or json (text)")
      ->check(CLI::IsMember({"text", "json"}));
  CLI::App* const inject = app.add_subcommand(
      "inject",
      "Read a Pod or an object with a pod template as JSON from standard input, and print it as the "
      "webhook would make it");
  inject->fallthrough();
  inject->callback([options] { options->inject = true; });
}

}  // namespace

Result<std::optional<Options>> ParseOptions(int argc, char** argv, int* exit_code) {
  CLI::App app(
      "gpushm-injector is the admission webhook that gives annotated pods their sidecar.\n"
      "Exit codes: 0 on success, 1 on failure, 2 if an option is not valid.",
      "gpushm-injector");
  Options options;
  Declare(app, &options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {
    *exit_code = app.exit(done);
    return std::optional<Options>();
  } catch (const CLI::ParseError& error) {
    return Fail(Code::kInvalidArgument, error.what(),
                "run gpushm-injector --help for a list of the flags");
  }
  if (options.settings.unit_bytes % annotations::kGranularityBytes != 0) {
    return Fail(Code::kInvalidArgument,
                Concat("--unit ", yaml::FormatBytes(options.settings.unit_bytes),
                       " is not a multiple of 2Mi"),
                "use, for example, --unit 1Gi");
  }
  const uint64_t most = options.settings.max_pod_bytes;
  if (most != 0 && most < options.settings.unit_bytes) {
    return Fail(Code::kInvalidArgument,
                Concat("--max-pod-memory ", yaml::FormatBytes(most), " is less than --unit ",
                       yaml::FormatBytes(options.settings.unit_bytes)),
                "use, for example, --max-pod-memory 139Gi");
  }
  return std::optional(std::move(options));
}

}  // namespace gpushm::injector
