// gpushmctl claim: a ResourceClaim for pods that share GPU memory, as a manifest.
#include <memory>

#include "contract/annotations/keys.h"
#include "contract/claim_spec.h"
#include "contract/claims.h"
#include "contract/limits.h"
#include "platform/base/name.h"
#include "platform/base/quote.h"
#include "runtime/ctl/commands.h"
#include "runtime/ctl/format.h"

namespace gpushm::ctl {
namespace {

constexpr uint64_t kStepBytes = uint64_t{2} << 20;  // Of the capacity `memory`.

struct ClaimArguments {
  std::string name;
  uint64_t bytes = 0;
  std::string others = "read";
  claims::ClaimWanted wanted = {.memory = {}, .containers = 8};
};

// A list in YAML, each entry in JSON.
std::string Lines(const char* key, const nlohmann::json& list) {
  std::string text = Concat("    ", key, ":\n");
  for (const nlohmann::json& entry : list) text += Concat("    - ", entry.dump(), "\n");
  return text;
}

Result<ExitCode> RunClaim(const Context& context, const ClaimArguments& arguments) {
  if (!IsDnsSubdomain(arguments.name)) {
    return Fail(Code::kInvalidArgument,
                Concat(Quote(arguments.name), " is not the name of a Kubernetes object"),
                "use small letters, digits, dots and dashes, such as weights");
  }
  claims::ClaimWanted wanted = arguments.wanted;
  wanted.memory = FormatBytes((arguments.bytes + kStepBytes - 1) / kStepBytes * kStepBytes);
  if (wanted.nvlink && wanted.gpus == 1) {
    return Fail(Code::kInvalidArgument, "--nvlink needs at least two GPUs", "add --gpus 2");
  }
  nlohmann::json metadata = {{"name", arguments.name}};
  if (arguments.others != "read")
    metadata["annotations"] = {{claims::kOthersKey, arguments.others}};
  const nlohmann::json spec = claims::ClaimSpec(wanted);
  if (context.globals.json) {
    return PrintDone(nlohmann::json{{"apiVersion", "resource.k8s.io/v1"},
                                    {"kind", "ResourceClaim"},
                                    {"metadata", metadata},
                                    {"spec", spec}}
                         .dump(2) +
                     "\n");
  }
  const std::string gpus =
      wanted.gpus == 1 ? "" : Concat(", ", annotations::kGpusKey, ": \"", wanted.gpus, "\"");
  return PrintDone(Concat(
      "# The pod that declares the buffers:   ", annotations::kClaimKey, ": ", arguments.name, ", ",
      annotations::kRoleKey, ": owner", gpus, "\n# Pods that use them:                  ",
      annotations::kClaimKey, ": ", arguments.name, gpus,
      wanted.mps
          ? Concat("\n# The pod with the MPS daemon:         ", annotations::kClaimKey, ": ",
                   arguments.name, ", ", annotations::kRoleKey, ": mps", gpus,
                   "\n# All pods that shall run under it:    ", annotations::kMpsKey, ": \"true\"")
          : std::string(),
      "\napiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: ", metadata.dump(),
      "\nspec:\n  devices:\n", Lines("requests", spec["devices"]["requests"]),
      Lines("constraints", spec["devices"]["constraints"])));
}

}  // namespace

void AddClaimCommand(CLI::App* app, Context* context) {
  CLI::App* const command = app->add_subcommand(
      "claim", "Print a ResourceClaim with which pods share GPU memory, for kubectl apply");
  const auto arguments = std::make_shared<ClaimArguments>();
  command->add_option("NAME", arguments->name, "The claim's name")->required();
  AddBytesOption(command, "--memory", &arguments->bytes,
                 "GPU memory of all pods together, of each GPU: the owner's buffers, and about 1Gi "
                 "for each process that uses the GPU")
      ->required();
  command->add_option("--gpus", arguments->wanted.gpus, "Number of GPUs, all of one node")
      ->check(CLI::Range(uint32_t{1}, limits::kPodGpus))
      ->capture_default_str();
  command
      ->add_option("--containers", arguments->wanted.containers,
                   "How many containers of all pods may use the GPU; it counts against the "
                   "plugin's attach-tokens")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1000}))
      ->capture_default_str();
  command
      ->add_option("--others", arguments->others,
                   "What pods other than the owner may do with its buffers")
      ->check(CLI::IsMember({"read", "write"}))
      ->capture_default_str();
  command->add_flag("--exclusive", arguments->wanted.exclusive,
                    "Nobody else gets memory of these GPUs");
  command->add_flag("--nvlink", arguments->wanted.nvlink,
                    "Only GPUs with NVLink between each two of them");
  command->add_flag("--mps", arguments->wanted.mps,
                    "One pod, with the role mps, runs an MPS daemon for all pods of the claim");
  command->callback([=] { context->action = [=] { return RunClaim(*context, *arguments); }; });
}

}  // namespace gpushm::ctl
