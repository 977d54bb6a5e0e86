// gpushmctl verify: whether a buffer has the content that it should have.
#include <optional>
#include <string>

#include "platform/base/digest.h"
#include "runtime/ctl/commands.h"
#include "runtime/ctl/format.h"
#include "runtime/ctl/json.h"
#include "runtime/ctl/terminal.h"

namespace gpushm::ctl {
namespace {

struct VerifyArguments {
  std::string name;
  std::string path;
  std::string digest;
  std::string format = "auto";
};

// The digest that the content must have, and who says so.
struct Expected {
  std::string digest;
  std::string source;
};

Result<Expected> ExpectedOf(const VerifyArguments& arguments, const Connection::Content& content) {
  if (!arguments.digest.empty()) {
    const auto digest = Digest::Parse(arguments.digest);
    if (digest) return Expected{digest->ToString(), "--digest"};
    return Fail(Code::kInvalidArgument, Concat("--digest ", Printable(arguments.digest)),
                "use the text of a digest: g1: and 32 hexadecimal digits");
  }
  if (!arguments.path.empty()) {
    auto digest = Connection::FileDigest(arguments.path, FormatOf(arguments.format));
    if (!digest) return std::unexpected(digest.error());
    return Expected{std::move(*digest), Printable(arguments.path)};
  }
  if (!content.kept.empty()) return Expected{content.kept, "the load"};
  return Fail(
      Code::kNotFound,
      Concat("generation ", content.generation, " of \"", arguments.name, "\" has the digest ",
             content.digest, ", and no load left one to compare it with"),
      "name the file, or give --digest");
}

Result<ExitCode> RunVerify(const Context& context, const VerifyArguments& arguments) {
  Result<Connection> connection = context.Connect();
  if (!connection) return std::unexpected(connection.error());
  const int64_t timeout_ms =
      context.globals.timeout_ms ? context.globals.TimeoutMs() : GPUSHM_DONT_WAIT;
  const auto content = connection->ContentOf(arguments.name, timeout_ms);
  if (!content) return std::unexpected(content.error());
  const auto expected = ExpectedOf(arguments, *content);
  if (!expected) return std::unexpected(expected.error());
  const bool equal = expected->digest == content->digest;
  const auto printed = Print(
      context.globals.json
          ? JsonText({{"buffer", arguments.name},
                      {"generation", std::to_string(content->generation)},
                      {"digest", content->digest},
                      {"expected", expected->digest},
                      {"expected_by", expected->source},
                      {"equal", equal}})
          : Concat(arguments.name, ", generation ", content->generation, ": ", content->digest,
                   equal ? ", the same as of " : ", other content than that of ", expected->source,
                   equal ? "" : ": " + expected->digest, "\n"));
  if (!printed) return std::unexpected(printed.error());
  return equal ? ExitCode::kOk : ExitCode::kFailure;
}

}  // namespace

void AddVerifyCommand(CLI::App* app, Context* context) {
  CLI::App* command = app->add_subcommand(
      "verify",
      "Make the digest of a buffer's content from the GPU's memory, and compare it with that of its "
      "load, of a file or of --digest. Exit code 1: it has other content");
  const auto arguments = std::make_shared<VerifyArguments>();
  command->add_option("NAME", arguments->name, "The buffer")->required();
  CLI::Option* const file = command->add_option(
      "FILE", arguments->path, "What it should have: a file, an index of shards or a folder");
  command->add_option("--digest", arguments->digest, "The digest that it should have")
      ->excludes(file);
  AddFormatOption(command, &arguments->format, "How FILE is read, as for load");
  command->callback([=] { context->action = [=] { return RunVerify(*context, *arguments); }; });
}

}  // namespace gpushm::ctl
