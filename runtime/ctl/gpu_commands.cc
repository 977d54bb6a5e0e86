// gpushmctl gpu: which GPUs a node's plugin has, and taking one out of service
// (docs/design/whose-gpu.md). Runs on the node, or in the plugin's pod.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ranges>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contract/status/drained.h"
#include "contract/status/status.h"
#include "platform/base/clock.h"
#include "runtime/ctl/commands.h"
#include "runtime/ctl/format.h"
#include "runtime/ctl/http.h"
#include "runtime/ctl/json.h"
#include "runtime/ctl/node_view.h"

namespace gpushm::ctl {
namespace {

using status::Gpu;
using status::Pool;

constexpr int64_t kTimeoutMs = 15'000;  // The plugin looks at least every ten seconds.
constexpr int kStepMs = 100;

struct GpuArguments {
  std::string gpu;  // UUID or index.
  std::string reason;
  std::string state_folder{"/var/lib/gpushm"};
  std::string node{kNodeAddress};
};

Result<status::Node> Ask(const GpuArguments& arguments, const Deadline& deadline) {
  const Result<Address> address = ParseAddress(arguments.node);
  if (!address) return std::unexpected(address.error());
  const Result<std::string> body = HttpGet(*address, "/status.json", deadline);
  if (!body) {
    return Fail(body.error().code(), body.error().what(),
                "run this on the node or in the plugin's pod, as `kubectl exec -n NAMESPACE "
                "PLUGIN-POD -- gpushmctl gpu ls`; if status.address of the plugin's configuration "
                "is another one, give it with --node HOST:PORT");
  }
  return status::FromJson(*body);
}

// The GPU, or all MIG instances of the GPU with that index.
std::vector<Gpu> Chosen(const status::Node& node, const std::string& gpu) {
  std::vector<Gpu> chosen;
  std::ranges::copy_if(node.gpus, std::back_inserter(chosen), [&](const Gpu& each) {
    return each.uuid == gpu || std::to_string(each.index) == gpu;
  });
  return chosen;
}

std::string StateOf(const Gpu& gpu) {
  std::string state = gpu.healthy ? "healthy" : "unhealthy: " + Printable(gpu.reason);
  if (!gpu.drained.empty()) state += ", drained: " + Printable(gpu.drained);
  if (!gpu.exclusive_to.empty()) state += ", only for " + Printable(gpu.exclusive_to);
  if (!gpu.taken_by.empty()) state += ", handed out by " + Printable(gpu.taken_by);
  return state;
}

Json HoldersJson(const Gpu& gpu) {
  Json holders = Json::array();
  for (const Pool& pool : gpu.pools) {
    holders.push_back({{"allocation", pool.allocation},
                       {"namespace", pool.name_space},
                       {"pod", pool.pod},
                       {"gpu_number", pool.gpu_number},
                       {"pod_gpus", pool.pod_gpus},
                       {"size_bytes", pool.size_bytes}});
  }
  return holders;
}

Json GpuJson(const Gpu& gpu) {
  return {{"gpu", gpu.uuid},
          {"index", gpu.index},
          {"healthy", gpu.healthy},
          {"drained", gpu.drained},
          {"exclusive_to", gpu.exclusive_to},
          {"taken_by", gpu.taken_by},
          {"total_bytes", gpu.total_bytes},
          {"bound_bytes", gpu.bound_bytes},
          {"holders", HoldersJson(gpu)}};
}

std::string AsJson(const std::vector<Gpu>& gpus) {
  Json json = Json::array();
  for (const Gpu& gpu : gpus) json.push_back(GpuJson(gpu));
  return JsonText(json);
}

Result<ExitCode> RunList(const Context& context, const GpuArguments& arguments) {
  const int64_t timeout_ms = context.globals.timeout_ms.value_or(kTimeoutMs);
  const Result<status::Node> node = Ask(arguments, Deadline::AfterMs(timeout_ms));
  if (!node) return std::unexpected(node.error());
  if (context.globals.json) return PrintDone(AsJson(node->gpus));
  Table table({{"GPU"}, {"UUID"}, {"GRANTED", true}, {"OF", true}, {"PODS", true}, {"STATE"}});
  for (const Gpu& gpu : node->gpus) {
    const bool good = gpu.healthy && gpu.drained.empty() && gpu.taken_by.empty();
    table.Add({{std::to_string(gpu.index)},
               {Printable(gpu.uuid)},
               {FormatBytes(gpu.bound_bytes)},
               {FormatBytes(gpu.total_bytes)},
               {std::to_string(gpu.pools.size())},
               {StateOf(gpu), good ? Color::kGreen : Color::kYellow}});
  }
  return PrintDone(table.Render(context.StdoutStyle().color));
}

// Waits until the plugin shows it.
Result<std::vector<Gpu>> WaitUntil(const GpuArguments& arguments, bool drained,
                                   const Deadline& deadline) {
  for (;;) {
    const Result<status::Node> node = Ask(arguments, deadline);
    if (!node) return std::unexpected(node.error());
    std::vector<Gpu> gpus = Chosen(*node, arguments.gpu);
    const auto is_so = [&](const Gpu& gpu) { return gpu.drained.empty() != drained; };
    if (!gpus.empty() && std::ranges::all_of(gpus, is_so)) return gpus;
    if (deadline.Passed()) {
      return Fail(
          Code::kTimeout,
          Concat("the plugin has not read ", arguments.state_folder, "/", status::kDrainedFolder),
          "check that --state-folder is the plugin's state-folder, and read its log");
    }
    poll(nullptr, 0, kStepMs);
  }
}

Result<ExitCode> RunChange(const Context& context, const GpuArguments& arguments, bool drain) {
  const Deadline deadline = Deadline::AfterMs(context.globals.timeout_ms.value_or(kTimeoutMs));
  const Result<status::Node> node = Ask(arguments, deadline);
  if (!node) return std::unexpected(node.error());
  const std::vector<Gpu> gpus = Chosen(*node, arguments.gpu);
  if (gpus.empty()) {
    return Fail(Code::kNotFound, Concat("this node has no GPU \"", arguments.gpu, "\""),
                "`gpushmctl gpu ls` lists the indices and UUIDs");
  }
  if (access(arguments.state_folder.c_str(), W_OK | X_OK) != 0) {
    return FailSystem(errno, Concat("write to ", arguments.state_folder),
                      "run this as root, and name the plugin's state-folder with --state-folder");
  }
  for (const Gpu& gpu : gpus) {
    if (!drain && gpu.drained.empty()) continue;
    const Result<void> done =
        drain ? status::Drain(arguments.state_folder, gpu.uuid, arguments.reason)
              : status::Undrain(arguments.state_folder, gpu.uuid);
    if (!done) return std::unexpected(done.error());
  }
  const Result<std::vector<Gpu>> after = WaitUntil(arguments, drain, deadline);
  if (!after) return std::unexpected(after.error());
  if (context.globals.json) return PrintDone(AsJson(*after));
  std::string text;
  for (const Gpu& gpu : *after) {
    text += Concat("GPU ", gpu.index, " (", Printable(gpu.uuid), ") ",
                   drain ? "is drained: no new pod gets it. " : "is in service.\n");
    if (drain) text += PodsText(*node, gpu, context.StdoutStyle().color);
  }
  return PrintDone(text);
}

}  // namespace

void AddGpuCommands(CLI::App* app, Context* context) {
  CLI::App* const gpu = app->add_subcommand(
      "gpu", "Show a node's GPUs, and take one out of service; run it in the plugin's pod");
  gpu->require_subcommand(1);
  const auto arguments = std::make_shared<GpuArguments>();
  const auto add = [=](const char* name, const char* help, auto run) {
    CLI::App* const command = gpu->add_subcommand(name, help);
    command->add_option("--node", arguments->node, "The plugin's status address")
        ->type_name("HOST:PORT")
        ->capture_default_str();
    command->callback([=] { context->action = [=] { return run(*context, *arguments); }; });
    return command;
  };
  const auto add_change = [=](const char* name, const char* help, bool drain) {
    CLI::App* const command =
        add(name, help, [drain](const Context& context_now, const GpuArguments& given) {
          return RunChange(context_now, given, drain);
        });
    command->add_option("GPU", arguments->gpu, "The GPU's index or UUID")->required();
    command->add_option("--state-folder", arguments->state_folder, "The plugin's state-folder")
        ->capture_default_str();
    return command;
  };
  add("ls", "List the GPUs, and how many pods hold each", RunList);
  add_change("drain", "Bind no new pod to a GPU, and list those that hold it", true)
      ->add_option("--reason", arguments->reason,
                   "Why, in one line of at most 256 bytes; pods that wait are told");
  add_change("undrain", "Bind new pods to the GPU again", false);
}

}  // namespace gpushm::ctl
