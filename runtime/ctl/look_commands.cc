// gpushmctl ls, stat, wait: showing what exists.
#include <charconv>

#include "platform/base/clock.h"
#include "runtime/ctl/commands.h"
#include "runtime/ctl/format.h"
#include "runtime/ctl/json.h"
#include "runtime/ctl/terminal.h"

namespace gpushm::ctl {
namespace {

Result<ExitCode> RunList(const Context& context, bool names_only) {
  Result<Connection> connection = context.Connect();
  if (!connection) return std::unexpected(connection.error());
  Snapshot snapshot;
  auto buffers = connection->List();
  if (!buffers) return std::unexpected(buffers.error());
  snapshot.buffers = std::move(*buffers);
  if (names_only) return PrintDone(ListNames(snapshot));
  auto holders = connection->Holders("");
  if (!holders) return std::unexpected(holders.error());
  snapshot.holders = std::move(*holders);
  snapshot.looks = connection->Look(snapshot.buffers);
  return PrintDone(context.globals.json ? ListJson(snapshot)
                                        : ListTable(snapshot, context.StdoutStyle()));
}

std::string ShapeText(const std::vector<uint64_t>& shape) {
  std::string text = "[";
  for (const uint64_t size : shape) text += Concat(text.size() > 1 ? ", " : "", size);
  return text + "]";
}

Result<ExitCode> RunListTensors(const Context& context, const std::string& name) {
  Result<Connection> connection = context.Connect();
  if (!connection) return std::unexpected(connection.error());
  const int64_t timeout_ms =
      context.globals.timeout_ms ? context.globals.TimeoutMs() : GPUSHM_DONT_WAIT;
  const auto tensors = connection->Tensors(name, timeout_ms);
  if (!tensors) return std::unexpected(tensors.error());
  if (context.globals.json) {
    Json list = Json::array();
    for (const Connection::Tensor& tensor : *tensors) {
      list.push_back({{"name", tensor.name},
                      {"dtype", gpushm_dtype_name(tensor.dtype)},
                      {"shape", tensor.shape},
                      {"offset", tensor.offset},
                      {"size_bytes", tensor.size_bytes}});
    }
    return PrintDone(JsonText({{"tensors", list}}));
  }
  Table table({{"TENSOR"}, {"TYPE"}, {"SHAPE"}, {"OFFSET", true}, {"SIZE", true}});
  for (const Connection::Tensor& tensor : *tensors) {
    table.Add({{Printable(tensor.name)},
               {gpushm_dtype_name(tensor.dtype)},
               {ShapeText(tensor.shape)},
               {std::to_string(tensor.offset)},
               {FormatBytes(tensor.size_bytes)}});
  }
  return PrintDone(table.Render(context.StdoutStyle().color));
}

Result<ExitCode> RunStat(const Context& context, const std::string& name) {
  Result<Connection> connection = context.Connect();
  if (!connection) return std::unexpected(connection.error());
  if (name.empty()) {
    const auto broker = connection->Broker();
    if (!broker) return std::unexpected(broker.error());
    return PrintDone(context.globals.json ? BrokerJson(*broker)
                                          : BrokerText(*broker, context.StdoutStyle()));
  }
  const auto info = connection->Lookup(name);
  if (!info) return std::unexpected(info.error());
  const auto reason = connection->Reason(name);
  if (!reason) return std::unexpected(reason.error());
  const auto holders = connection->Holders(name);
  if (!holders) return std::unexpected(holders.error());
  const std::vector<gpushm_sync_info> looks = connection->Look({*info});
  const gpushm_sync_info* const look = looks.empty() ? nullptr : looks.data();
  return PrintDone(context.globals.json
                       ? StatJson(*info, *reason, *holders, look)
                       : StatText(*info, *reason, *holders, look, context.StdoutStyle()));
}

Result<ExitCode> RunWait(const Context& context, const std::string& name, uint64_t generation,
                         bool for_broker) {
  if (for_broker == !name.empty()) {
    return Fail(Code::kInvalidArgument, "wait takes either a buffer's NAME or --broker",
                "use gpushmctl wait weights, or gpushmctl wait --broker");
  }
  const int64_t wait_ms = context.globals.TimeoutMs();
  const Deadline deadline = Deadline::AfterMs(wait_ms > 0 ? wait_ms : GPUSHM_DEFAULT_TIMEOUT_MS);
  Result<Connection> connection = context.Connect(/*patient=*/true);
  if (!connection) return std::unexpected(connection.error());
  if (for_broker) {
    const auto broker = connection->Broker();
    if (!broker) return std::unexpected(broker.error());
    return context.globals.json ? PrintDone(BrokerJson(*broker)) : Result<ExitCode>(ExitCode::kOk);
  }
  // The time that connecting took is subtracted.
  const int64_t left_ms = deadline.RemainingNs() / 1'000'000;
  const auto info = connection->WaitFor(
      name, generation, wait_ms == GPUSHM_DONT_WAIT || left_ms == 0 ? GPUSHM_DONT_WAIT : left_ms);
  if (!info) return std::unexpected(info.error());
  return PrintDone(context.globals.json ? InfoJson(*info) : InfoLine("found", *info));
}

}  // namespace

void AddLookCommands(CLI::App* app, Context* context) {
  CLI::App* list = app->add_subcommand(
      "ls", "List buffers, signals, barriers and rings, and how many processes hold each");
  const auto names_only = std::make_shared<bool>(false);
  list->add_flag("--names", *names_only, "Print only names, one on each line");
  const auto tensors = std::make_shared<std::string>();
  list->add_option("--tensors", *tensors, "List the tensors of this buffer instead")
      ->type_name("NAME");
  list->callback([=] {
    context->action = [=] {
      return tensors->empty() ? RunList(*context, *names_only) : RunListTensors(*context, *tensors);
    };
  });

  CLI::App* stat =
      app->add_subcommand("stat",
                          "Show everything about one buffer or signal and its holders; "
                          "without NAME, about the broker");
  const auto name = std::make_shared<std::string>();
  stat->add_option("NAME", *name, "The buffer, signal, barrier or ring");
  stat->callback([=] { context->action = [=] { return RunStat(*context, *name); }; });
}

void AddWaitCommand(CLI::App* app, Context* context) {
  CLI::App* wait = app->add_subcommand(
      "wait", "Wait until a buffer exists and has its content, or until the broker answers");
  struct Options {
    std::string name;
    uint64_t generation = 0;
    bool broker = false;
  };
  const auto options = std::make_shared<Options>();
  wait->add_option("NAME", options->name, "The buffer");
  wait->add_option("--generation", options->generation,
                   "Wait for at least this generation (ls shows the current one)")
      ->check([](const std::string& text) {
        uint64_t generation = 0;
        const auto [end, error] =
            std::from_chars(text.data(), text.data() + text.size(), generation);
        return error == std::errc() && *end == '\0'
                   ? std::string()
                   : Concat("\"", text,
                            "\" is not a generation; gpushmctl ls shows the current ones");
      });
  wait->add_flag("--broker", options->broker, "Wait only for the broker, as a readiness check");
  wait->callback([=] {
    context->action = [=] {
      return RunWait(*context, options->name, options->generation, options->broker);
    };
  });
}

}  // namespace gpushm::ctl
