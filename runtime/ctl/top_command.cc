// gpushmctl top: showing changes.
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/clock.h"
#include "runtime/ctl/commands.h"
#include "runtime/ctl/http.h"
#include "runtime/ctl/node_view.h"
#include "runtime/ctl/terminal.h"

namespace gpushm::ctl {
namespace {

constexpr int64_t kMinIntervalMs = 50;
// Lines of the screen that are not rows of the table: heading, titles, "... and more", the cursor.
constexpr int kOtherLines = 6;

constexpr int64_t kNodeTimeoutMs = 10'000;

struct TopArguments {
  int64_t interval_ms = 1000;
  uint64_t samples = 0;  // 0: until Ctrl-C.
  std::string sort = "name";
  std::string node;  // Address of the plugin; if empty, this pod's broker is shown.
};

Result<TopSample> Take(Connection* connection) {
  TopSample sample{};
  auto buffers = connection->List();
  if (!buffers) return std::unexpected(buffers.error());
  auto holders = connection->Holders("");
  if (!holders) return std::unexpected(holders.error());
  const auto broker = connection->Broker();
  if (!broker) return std::unexpected(broker.error());
  sample.broker = *broker;
  sample.snapshot = {std::move(*buffers), std::move(*holders)};
  return sample;
}

TopOrder OrderOf(std::string_view sort) {
  return sort == "size"      ? TopOrder::kSize
         : sort == "holders" ? TopOrder::kHolders
                             : TopOrder::kName;
}

// Returns the text of one sample. `redraw`: for a screen, not for a file.
using Sampler = std::function<Result<std::string>(bool redraw)>;

Result<ExitCode> Watch(const Context& context, const TopArguments& arguments,
                       const Sampler& sample) {
  CatchInterrupt();
  const bool redraw = IsTerminal(STDOUT_FILENO) && !context.globals.json;
  for (uint64_t taken = 0;;) {
    const Deadline next = Deadline::AfterMs(arguments.interval_ms);
    const Result<std::string> sampled = sample(redraw);
    if (Interrupted()) return ExitCode::kOk;
    std::string text;
    if (sampled) {
      text = *sampled;
    } else if (redraw && arguments.samples == 0 && sampled.error().code() == Code::kUnavailable) {
      // Someone is watching, and the sidecar or the plugin may come back.
      text = ErrorText(sampled.error());
    } else {
      return std::unexpected(sampled.error());
    }
    if (redraw) text = "\033[H\033[J" + text;
    if (!redraw && !context.globals.json && taken > 0) text = "\n" + text;
    if (auto done = Print(text); !done) return std::unexpected(done.error());
    if (++taken == arguments.samples) return ExitCode::kOk;
    if (!WaitOrInterrupt(next.RemainingMs())) return ExitCode::kOk;
  }
}

Result<ExitCode> RunPod(const Context& context, const TopArguments& arguments) {
  Result<Connection> connection = context.Connect();
  if (!connection) return std::unexpected(connection.error());
  std::optional<TopSample> previous;
  int64_t previous_ns = 0;
  return Watch(context, arguments, [&](bool redraw) -> Result<std::string> {
    Result<TopSample> sample = Take(&*connection);
    if (!sample) return std::unexpected(sample.error());
    const int64_t now_ns = MonotonicNs();
    const Style style = context.StdoutStyle();
    const int rows = redraw ? std::max(1, SizeOf(STDOUT_FILENO).rows - kOtherLines) : 0;
    std::string text = context.globals.json
                           ? TopJson(*sample, style.now_unix_ns)
                           : TopText(*sample, previous ? &*previous : nullptr, now_ns - previous_ns,
                                     OrderOf(arguments.sort), rows, style);
    previous = std::move(*sample);
    previous_ns = now_ns;
    return text;
  });
}

Result<ExitCode> RunNode(const Context& context, const TopArguments& arguments) {
  const Result<Address> address = ParseAddress(arguments.node);
  if (!address) return std::unexpected(address.error());
  const int64_t timeout_ms = context.globals.timeout_ms.value_or(kNodeTimeoutMs);
  return Watch(context, arguments, [&](bool redraw) -> Result<std::string> {
    Result<std::string> body = HttpGet(*address, "/status.json", Deadline::AfterMs(timeout_ms));
    if (!body) return body;
    const Result<status::Node> node = status::FromJson(*body);
    if (!node) return std::unexpected(node.error());
    if (context.globals.json) return body->ends_with('\n') ? *body : *body + '\n';
    const TerminalSize size = SizeOf(STDOUT_FILENO);
    return NodeText(*node, {.style = context.StdoutStyle(),
                            .unicode = WantsUnicode(),
                            .columns = size.columns,
                            .rows = redraw ? size.rows : 0});
  });
}

}  // namespace

void AddTopCommand(CLI::App* app, Context* context) {
  CLI::App* top =
      app->add_subcommand("top", "Show the pool and its buffers repeatedly, until Ctrl-C");
  const auto arguments = std::make_shared<TopArguments>();
  AddDurationOption(
      top, "-i,--interval",
      [=](int64_t interval_ms) { arguments->interval_ms = std::max(interval_ms, kMinIntervalMs); },
      "Time between samples (default 1s)");
  top->add_option("-n,--count", arguments->samples,
                  "End after this many samples (default 0: never)");
  CLI::Option* const sort = top->add_option("--sort", arguments->sort, "Order of the rows");
  sort->check(CLI::IsMember({"name", "size", "holders"}))->capture_default_str();
  top->add_option_function<std::vector<std::string>>(
         "--node",
         [=](const std::vector<std::string>& given) {
           const bool named = !given.empty() && given.front().find(':') != std::string::npos;
           arguments->node = named ? given.front() : std::string(kNodeAddress);
         },
         "Show all pods of the node, as its plugin reports them (default 127.0.0.1:9401)")
      ->type_name("HOST:PORT")
      ->expected(0, 1)
      ->excludes(sort);
  top->callback([=] {
    context->action = [=] {
      return arguments->node.empty() ? RunPod(*context, *arguments) : RunNode(*context, *arguments);
    };
  });
}

}  // namespace gpushm::ctl
