// gpushmctl doctor: checks what works here, and explains what does not.
#include <algorithm>

#include "runtime/ctl/commands.h"
#include "runtime/ctl/examine.h"
#include "runtime/ctl/terminal.h"

namespace gpushm::ctl {
namespace {

Result<ExitCode> Run(const Context& context) {
  const Globals& globals = context.globals;
  const int64_t wait_ms = globals.timeout_ms ? std::max<int64_t>(*globals.timeout_ms, 1) : kTryMs;
  const BrokerView broker = AskBroker(context.Connect());
  const std::vector<Check> checks =
      Examine({.folder = globals.folder, .pod_uid = globals.pod_uid}, broker, wait_ms);
  const std::string text =
      globals.json ? DoctorJson(checks) : DoctorText(checks, context.StdoutStyle().color);
  if (auto done = Print(text); !done) return std::unexpected(done.error());
  return AnyFailed(checks) ? ExitCode::kFailure : ExitCode::kOk;
}

}  // namespace

void AddDoctorCommand(CLI::App* app, Context* context) {
  app->add_subcommand("doctor",
                      "Check everything that gpushm needs here, each GPU check in "
                      "a process of its own, and print a remedy for each failure")
      ->callback([=] { context->action = [=] { return Run(*context); }; });
}

}  // namespace gpushm::ctl
