// gpushmctl top: what changes.
#include <unistd.h>

#include <optional>
#include <string_view>

#include "runtime/base/clock.h"
#include "runtime/ctl/commands.h"
#include "runtime/ctl/format.h"
#include "runtime/ctl/terminal.h"

namespace gpushm::ctl {
namespace {

constexpr int64_t kMinIntervalMs = 50;
// Lines of the screen that are not rows of the table: head, titles, "... and more", the cursor.
constexpr int kOtherLines = 6;

struct Arguments {
  int64_t interval_ms = 1000;
  uint64_t samples = 0;  // 0: until Ctrl-C.
  std::string sort = "name";
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

Result<ExitCode> Run(const Context& context, const Arguments& arguments) {
  Result<Connection> connection = context.Connect();
  if (!connection) return std::unexpected(connection.error());
  CatchInterrupt();
  const bool redraw = IsTerminal(STDOUT_FILENO) && !context.globals.json;
  std::optional<TopSample> previous;
  int64_t previous_ns = 0;
  for (uint64_t taken = 0;;) {
    const Deadline next = Deadline::AfterMs(arguments.interval_ms);
    Result<TopSample> sample = Take(&*connection);
    if (Interrupted()) return ExitCode::kOk;
    const int64_t now_ns = MonotonicNs();
    const Style style = context.StdoutStyle();
    std::string text;
    if (sample) {
      const int rows = redraw ? std::max(1, SizeOf(STDOUT_FILENO).rows - kOtherLines) : 0;
      text = context.globals.json
                 ? TopJson(*sample, style.now_unix_ns)
                 : TopText(*sample, previous ? &*previous : nullptr, now_ns - previous_ns,
                           OrderOf(arguments.sort), rows, style);
      previous = std::move(*sample);
      previous_ns = now_ns;
    } else if (redraw && arguments.samples == 0 && sample.error().code() == Code::kUnavailable) {
      // Somebody watches: the sidecar may come back.
      text = ErrorText(sample.error());
    } else {
      return std::unexpected(sample.error());
    }
    if (redraw) text = "\033[H\033[J" + text;
    if (!redraw && !context.globals.json && taken > 0) text = "\n" + text;
    if (auto done = Print(text); !done) return std::unexpected(done.error());
    if (++taken == arguments.samples) return ExitCode::kOk;
    if (!WaitOrInterrupt(next.RemainingMs())) return ExitCode::kOk;
  }
}

}  // namespace

void AddTopCommand(CLI::App* app, Context* context) {
  CLI::App* top =
      app->add_subcommand("top", "Show the pool and its buffers again and again; Ctrl-C ends it");
  const auto arguments = std::make_shared<Arguments>();
  AddDurationOption(
      top, "-i,--interval",
      [=](int64_t interval_ms) { arguments->interval_ms = std::max(interval_ms, kMinIntervalMs); },
      "Time between samples (default 1s)");
  top->add_option("-n,--count", arguments->samples, "End after so many samples (default 0: never)");
  top->add_option("--sort", arguments->sort, "Order of the rows")
      ->check(CLI::IsMember({"name", "size", "holders"}))
      ->capture_default_str();
  top->callback([=] { context->action = [=] { return Run(*context, *arguments); }; });
}

}  // namespace gpushm::ctl
