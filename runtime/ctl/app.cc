#include "runtime/ctl/app.h"

#include <unistd.h>

#include <exception>

#include "platform/base/clock.h"
#include "platform/base/version.h"
#include "runtime/ctl/parse.h"
#include "runtime/ctl/terminal.h"

namespace gpushm::ctl {
namespace {

Result<ExitCode> Run(const Context& context) {
  try {
    return context.action();
  } catch (const std::exception& error) {
    return Fail(Code::kInternal, Concat("internal error: ", error.what()),
                "this is a bug of gpushm: please report it");
  }
}

int ExitOf(ExitCode code) { return static_cast<int>(code); }

// The deepest command on the line.
const CLI::App& NamedCommand(const CLI::App& app) {
  const CLI::App* named = &app;
  while (!named->get_subcommands().empty()) named = named->get_subcommands().front();
  return *named;
}

// "gpushmctl gpu drain"
std::string LineOf(const CLI::App& command) {
  const CLI::App* const parent = command.get_parent();
  return parent == nullptr ? command.get_name() : Concat(LineOf(*parent), " ", command.get_name());
}

// CLI11 reports only that a command is missing.
Status MissingCommand(const CLI::App& command, const std::vector<std::string>& rest) {
  const std::string line = LineOf(command);
  const std::string help = Concat(line, " --help describes ");
  if (command.get_parent() == nullptr) {
    return Status(Code::kInvalidArgument, Concat("unknown command \"", rest.front(), "\""),
                  help + "the arguments");
  }
  const auto words = command.get_subcommands([](const CLI::App*) { return true; });
  std::string list;
  for (const CLI::App* word : words) {
    list += word == words.front() ? "" : word == words.back() ? " or " : ", ";
    list += word->get_name();
  }
  return Status(Code::kInvalidArgument,
                rest.empty() ? Concat("\"", line, "\" needs one more word: ", list)
                             : Concat("\"", line, " ", rest.front(), "\": the word after \"", line,
                                      "\" is ", list),
                Concat("for example: ", line, " ", words.front()->get_name(), "; ", help, "them"));
}

int ParseFailed(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = NamedCommand(app);
  Status status(Code::kInvalidArgument, error.what(),
                Concat(LineOf(command), " --help describes the arguments"));
  if (command.get_require_subcommand_min() > 0 &&
      dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    const std::vector<std::string> rest = app.remaining(/*recurse=*/true);
    if (rest.empty() && &command == &app) {
      PrintError(app.help());
      return ExitOf(ExitCode::kUsage);
    }
    status = MissingCommand(command, rest);
  }
  PrintError(ErrorText(status));
  return ExitOf(ExitCode::kUsage);
}

}  // namespace

int64_t Globals::TimeoutMs() const {
  if (!timeout_ms) return 0;
  return *timeout_ms == 0 ? GPUSHM_DONT_WAIT : *timeout_ms;
}

Result<Connection> Context::Connect(bool patient) const {
  const bool at_once = !patient && !globals.timeout_ms;
  return Connection::Open({.folder = globals.folder,
                           .pod_uid = globals.pod_uid,
                           .timeout_ms = at_once ? GPUSHM_DONT_WAIT : globals.TimeoutMs()});
}

Style Context::StdoutStyle() const {
  return {.color = WantsColor(STDOUT_FILENO, globals.no_color), .now_unix_ns = UnixNs()};
}

Result<ExitCode> PrintDone(std::string_view text) {
  if (auto done = Print(text); !done) return std::unexpected(done.error());
  return ExitCode::kOk;
}

CLI::Option* AddBytesOption(CLI::App* app, const std::string& names, uint64_t* bytes,
                            const std::string& help) {
  return app
      ->add_option_function<std::string>(
          names, [bytes](const std::string& text) { *bytes = ParseBytes(text).value_or(0); }, help)
      ->type_name("BYTES")
      ->check([](const std::string& text) {
        const auto parsed = ParseBytes(text);
        return parsed ? std::string()
                      : Concat(parsed.error().what(), ": ", parsed.error().remedy());
      });
}

CLI::Option* AddFormatOption(CLI::App* app, std::string* format, const std::string& help) {
  return app->add_option("--format", *format, help)
      ->check(CLI::IsMember({"auto", "raw", "tensors"}))
      ->capture_default_str();
}

uint32_t FormatOf(std::string_view format) {
  return format == "raw"       ? GPUSHM_FORMAT_RAW
         : format == "tensors" ? GPUSHM_FORMAT_TENSORS
                               : GPUSHM_FORMAT_AUTO;
}

CLI::Option* AddDurationOption(CLI::App* app, const std::string& names,
                               std::function<void(int64_t duration_ms)> set,
                               const std::string& help) {
  return app
      ->add_option_function<std::string>(
          names, [set](const std::string& text) { set(ParseDurationMs(text).value_or(0)); }, help)
      ->type_name("TIME")
      ->check([](const std::string& text) {
        const auto parsed = ParseDurationMs(text);
        return parsed ? std::string()
                      : Concat(parsed.error().what(), ": ", parsed.error().remedy());
      });
}

std::unique_ptr<CLI::App> MakeApp(Context* context) {
  auto app = std::make_unique<CLI::App>(
      "gpushmctl shows and manages the named GPU buffers of a pod.", "gpushmctl");
  app->footer(
      Concat(ExitCodeHelp(),
             "\nEnvironment: GPUSHM_DIR (folder of the broker's socket), GPUSHM_DRIVER (folder of\n"
             "libcuda.so.1), NO_COLOR. Bash completion: source <(gpushmctl completion bash)"));
  app->set_version_flag("--version", Concat("gpushmctl ", kVersion));
  app->require_subcommand(1);
  Globals* const globals = &context->globals;
  app->add_option("--folder", globals->folder,
                  "Folder of the broker's socket (default $GPUSHM_DIR, else /run/gpushm)");
  app->add_option("--pod-uid", globals->pod_uid,
                  "Use the broker of this hostIPC pod on this node, instead of the own pod's");
  AddDurationOption(
      app.get(), "--timeout", [globals](int64_t timeout_ms) { globals->timeout_ms = timeout_ms; },
      "How long to wait, also for a broker that does not answer yet; "
      "0: do not wait. By default calls wait 10s, only the wait command "
      "waits for a broker, and load and save do not wait for a buffer");
  app->add_option_function<std::string>(
         "-o,--output", [globals](const std::string& format) { globals->json = format == "json"; },
         "Output format: table or json (docs/reference/gpushmctl.md describes the members)")
      ->check(CLI::IsMember({"table", "json"}));
  app->add_flag("--no-color", globals->no_color, "Print no colours on a terminal");

  AddLookCommands(app.get(), context);
  AddTopCommand(app.get(), context);
  AddGpuCommands(app.get(), context);
  AddClaimCommand(app.get(), context);
  AddTransferCommands(app.get(), context);
  AddVerifyCommand(app.get(), context);
  AddMakeCommands(app.get(), context);
  AddWaitCommand(app.get(), context);
  AddDoctorCommand(app.get(), context);
  AddCompletionCommand(app.get(), context);
  // Global options may also follow the command.
  for (CLI::App* command : app->get_subcommands([](const CLI::App*) { return true; })) {
    command->fallthrough();
    command->footer(
        "Every command also takes --folder, --pod-uid, --timeout, -o and --no-color:\n"
        "gpushmctl --help describes them, and the exit codes.");
  }
  return app;
}

int Main(int argc, char** argv) {
  Context context;
  const std::unique_ptr<CLI::App> app = MakeApp(&context);
  try {
    app->parse(argc, argv);
  } catch (const CLI::Success& done) {
    return app->exit(done);
  } catch (const CLI::ParseError& error) {
    return ParseFailed(*app, error);
  }
  const Result<ExitCode> outcome = Run(context);
  if (outcome) return ExitOf(*outcome);
  PrintError(ErrorText(outcome.error()));
  return ExitOf(ExitCodeFor(outcome.error().code()));
}

}  // namespace gpushm::ctl
