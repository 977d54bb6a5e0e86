// gpushmctl create, rm.
#include <optional>
#include <vector>

#include "runtime/ctl/commands.h"
#include "runtime/ctl/format.h"
#include "runtime/ctl/json.h"
#include "runtime/ctl/terminal.h"

namespace gpushm::ctl {
namespace {

struct CreateArguments {
  std::string name;
  uint64_t size_bytes = 0;
  std::string from;
  uint32_t gpu = 0;
  std::string writers = "creator";
  std::string on_writer_exit = "mark";
  bool one_writer = false;
};

Result<ExitCode> RunCreate(const Context& context, const CreateArguments& arguments) {
  Result<Connection> connection = context.Connect();
  if (!connection) return std::unexpected(connection.error());
  gpushm_create_options options;
  GPUSHM_INIT(&options);
  options.writers = arguments.writers == "all" ? GPUSHM_WRITERS_ALL : GPUSHM_WRITERS_CREATOR;
  options.gpu = arguments.gpu;
  options.one_writer = arguments.one_writer ? 1 : 0;
  options.on_writer_exit = arguments.on_writer_exit == "keep"   ? GPUSHM_WRITER_EXIT_KEEP
                           : arguments.on_writer_exit == "drop" ? GPUSHM_WRITER_EXIT_DROP
                                                                : GPUSHM_WRITER_EXIT_MARK;
  options.timeout_ms = context.globals.TimeoutMs();
  uint64_t size_bytes = arguments.size_bytes;
  if (!arguments.from.empty()) {
    const Result<uint64_t> measured = Connection::Measure(arguments.from);
    if (!measured) return std::unexpected(measured.error().WithContext("--from"));
    size_bytes = *measured;
  }
  if (auto done = connection->Create(arguments.name, size_bytes, options); !done) {
    return std::unexpected(done.error());
  }
  const auto info = connection->Lookup(arguments.name);
  if (!info) return std::unexpected(info.error());
  return PrintDone(context.globals.json ? InfoJson(*info) : InfoLine("created", *info));
}

Result<ExitCode> RunRemove(const Context& context, const std::vector<std::string>& names,
                           bool ignore_missing) {
  Result<Connection> connection = context.Connect();
  if (!connection) return std::unexpected(connection.error());
  // All names are tried. The command's exit code is that of the first failure.
  std::optional<Status> failure;
  std::vector<std::string> removed;
  for (const std::string& name : names) {
    const auto done = connection->Delete(name, context.globals.TimeoutMs());
    if (done) {
      removed.push_back(name);
    } else if (!(ignore_missing && done.error().code() == Code::kNotFound)) {
      if (failure) PrintError(ErrorText(*failure));
      failure = done.error();
    }
  }
  std::string text;
  if (context.globals.json) {
    text = JsonText({{"removed", removed}});
  } else {
    for (const std::string& name : removed) text += Concat("removed ", Printable(name), "\n");
  }
  if (auto done = Print(text); !done) return std::unexpected(done.error());
  if (failure) return std::unexpected(*failure);
  return ExitCode::kOk;
}

}  // namespace

void AddMakeCommands(CLI::App* app, Context* context) {
  CLI::App* create = app->add_subcommand(
      "create",
      "Make a zeroed buffer in the pod's pool. It stays after gpushmctl ends. "
      "Only rm, a writer's exit with --on-writer-exit drop, or the end of the pod removes it");
  const auto arguments = std::make_shared<CreateArguments>();
  create->add_option("NAME", arguments->name, "The buffer's name, a DNS label")->required();
  CLI::Option* const size = AddBytesOption(create, "SIZE", &arguments->size_bytes,
                                           "Its size, for example 8Gi, 512Mi or 4096");
  create
      ->add_option("--from", arguments->from,
                   "Instead of SIZE: as large as load needs for this file, index or folder")
      ->excludes(size);
  create
      ->add_option("--gpu", arguments->gpu,
                   "The number of the GPU, among those of the pod, that holds the bytes; stat "
                   "lists them")
      ->capture_default_str();
  create->add_option("--writers", arguments->writers, "Which containers may write: creator or all")
      ->check(CLI::IsMember({"creator", "all"}))
      ->capture_default_str();
  create->add_flag("--one-writer", arguments->one_writer,
                   "At most one process may hold it for writing");
  create
      ->add_option("--on-writer-exit", arguments->on_writer_exit,
                   "When a writer dies: mark the buffer, keep it unmarked, or drop it")
      ->check(CLI::IsMember({"mark", "keep", "drop"}))
      ->capture_default_str();
  create->callback([=] {
    if (arguments->size_bytes == 0 && arguments->from.empty()) {
      throw CLI::RequiredError("SIZE or --from");
    }
    context->action = [=] { return RunCreate(*context, *arguments); };
  });

  CLI::App* remove = app->add_subcommand(
      "rm", "Remove buffers' names; the memory is freed when no process holds it any more");
  struct RemoveArguments {
    std::vector<std::string> names;
    bool ignore_missing = false;
  };
  const auto removing = std::make_shared<RemoveArguments>();
  remove->add_option("NAME", removing->names, "The buffers")->required();
  remove->add_flag("-f,--ignore-not-found", removing->ignore_missing,
                   "Do not report a missing buffer as an error");
  remove->callback([=] {
    context->action = [=] {
      return RunRemove(*context, removing->names, removing->ignore_missing);
    };
  });
}

}  // namespace gpushm::ctl
