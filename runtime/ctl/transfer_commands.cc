// gpushmctl load, save: copying files into buffers and back.
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "platform/base/clock.h"
#include "platform/base/file_stamp.h"
#include "runtime/ctl/commands.h"
#include "runtime/ctl/format.h"
#include "runtime/ctl/stay.h"
#include "runtime/ctl/terminal.h"

namespace gpushm::ctl {
namespace {

constexpr int64_t kRedrawNs = 100'000'000;
// A load that waits this long for its file to stay as it is says so, and how long it was.
constexpr int64_t kSayWaitNs = 500'000'000;
constexpr uint64_t kMinChunkBytes = uint64_t{1} << 20;
constexpr uint64_t kMaxChunkBytes = uint64_t{1} << 30;

struct TransferArguments {
  std::string name;
  std::string path;
  std::string file_method = "auto";
  uint64_t chunk_bytes = 0;
  uint32_t chunks = 0;
  std::optional<uint32_t> threads;  // 0: none. Empty: the library chooses.
  int64_t stall_ms = 60'000;
  bool no_progress = false;
  bool whole = false;
  bool next = false;
  bool stay = false;
  uint64_t bytes = 0;  // That must come; 0: not said.
  std::string format = "auto";
  std::string digest;
};

// Ends the process when a transfer in this process stalls. A call into the driver of an unhealthy
// GPU never returns, so only a signal can end it. It watches from the first Feed() on.
class Watchdog {
 public:
  explicit Watchdog(int64_t stall_ms) : seconds_(static_cast<unsigned>((stall_ms + 999) / 1000)) {
    struct sigaction action{};
    action.sa_handler = OnAlarm;
    sigaction(SIGALRM, &action, nullptr);
  }
  ~Watchdog() { alarm(0); }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  void Feed() const { alarm(seconds_); }

 private:
  static void OnAlarm(int) {
    static constexpr std::string_view kText =
        "\ngpushmctl: the transfer stalled: neither the GPU's driver nor the file answers\n"
        "remedy: gpushmctl doctor shows which; --stall-timeout allows more time\n";
    // The process is about to end, so a failed write is ignored.
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText.data(), kText.size());
    _exit(static_cast<int>(ExitCode::kTimeout));
  }
  const unsigned seconds_;
};

class ProgressBar {
 public:
  ProgressBar(std::string name, bool shown) : name_(std::move(name)), shown_(shown) {}
  ~ProgressBar() {
    if (drawn_) PrintError("\r\033[K");
  }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void Update(uint64_t done_bytes, uint64_t total_bytes) {
    const int64_t now_ns = MonotonicNs();
    const bool ended = total_bytes != 0 && done_bytes >= total_bytes;
    const bool due = now_ns - last_ns_ >= kRedrawNs || ended;
    if (!shown_ || !due) return;
    last_ns_ = now_ns;
    drawn_ = true;
    const int columns = SizeOf(STDERR_FILENO).columns;
    PrintError("\r" +
               ProgressLine(name_, done_bytes, total_bytes, now_ns - start_ns_, columns - 1) +
               "\033[K");
  }
  // A line above it.
  void Say(std::string_view line) {
    PrintError(Concat(drawn_ ? "\r\033[K" : "", "gpushmctl: ", line, "\n"));
  }

 private:
  const std::string name_;
  const bool shown_;
  const int64_t start_ns_ = MonotonicNs();
  int64_t last_ns_ = 0;
  bool drawn_ = false;
};

// gpushmctl is a process of gpushm, so cuFile may start threads in it.
uint32_t FileMethodOf(std::string_view method) {
  return method == "page-cache" ? GPUSHM_FILE_CACHED
         : method == "direct"   ? GPUSHM_FILE_DIRECT
         : method == "gds"      ? GPUSHM_FILE_GDS
         : method == "pages"    ? GPUSHM_FILE_PAGES
                                : GPUSHM_FILE_AUTO_GDS;
}

// How often --next looks whether a file is there.
constexpr int kLookForFileMs = 1000;

// As large as a load needs it; for a stream what was announced, or 0, which is the present size.
Result<uint64_t> SizeOfNext(const TransferArguments& arguments, const TransferSettings& settings) {
  struct stat info{};
  const bool stream =
      arguments.path == "-" || (stat(arguments.path.c_str(), &info) == 0 && S_ISFIFO(info.st_mode));
  if (stream) return settings.bytes;
  return Connection::Measure(arguments.path, settings.format);
}

// Waits until there are a file, and a buffer to get a next generation. Returns the size of that
// one. `deadline` is that of the whole command; `settings` gets what is left of it.
Result<uint64_t> PrepareNext(Connection* connection, const TransferArguments& arguments,
                             const Deadline& deadline, TransferSettings* settings) {
  const auto keep_time = [&] {
    if (settings->timeout_ms > 0) settings->timeout_ms = std::max(deadline.RemainingMs(), 1);
  };
  Result<uint64_t> bytes = SizeOfNext(arguments, *settings);
  const auto may_come = [](Code code) {
    return code == Code::kNotFound || code == Code::kBusy || code == Code::kSystem;
  };
  while (!bytes && settings->timeout_ms > 0 && may_come(bytes.error().code())) {
    if (deadline.Passed()) {
      return Fail(Code::kTimeout, Concat("timed out waiting for the file: ", bytes.error().what()),
                  bytes.error().remedy());
    }
    poll(nullptr, 0, std::min(kLookForFileMs, deadline.RemainingMs()));
    bytes = SizeOfNext(arguments, *settings);
  }
  if (!bytes) return bytes;
  keep_time();
  const auto found = connection->WaitFor(arguments.name, 0, settings->timeout_ms);
  // A buffer whose load failed gets a new generation, too.
  if (!found && found.error().code() != Code::kSystem) return std::unexpected(found.error());
  keep_time();
  return bytes;
}

Result<ExitCode> RunTransfer(const Context& context, const TransferArguments& arguments,
                             bool load) {
  Result<Connection> connection = context.Connect();
  if (!connection) return std::unexpected(connection.error());
  const Watchdog watchdog(arguments.stall_ms);
  TransferSettings settings;
  settings.file_method = FileMethodOf(arguments.file_method);
  settings.chunk_bytes = arguments.chunk_bytes;
  settings.chunks = arguments.chunks;
  settings.whole = arguments.whole;
  settings.bytes = arguments.bytes;
  settings.format = FormatOf(arguments.format);
  settings.digest = arguments.digest;
  settings.threads = arguments.threads == 0U ? GPUSHM_NO_THREADS : arguments.threads.value_or(0);
  // Without --timeout a missing buffer is an immediate error: most often its name is misspelt.
  settings.timeout_ms = context.globals.timeout_ms ? context.globals.TimeoutMs() : GPUSHM_DONT_WAIT;
  const Deadline deadline = Deadline::AfterMs(std::max<int64_t>(settings.timeout_ms, 0));
  uint64_t generation = 0;
  bool resized = false;     // The file was, between its measurement and its load.
  int64_t settling_ns = 0;  // Of the time: the bytes had moved, and the file had to stay as it is.
  const auto transfer = [&]() -> Result<gpushm_transfer_result> {
    Result<uint64_t> next_bytes;
    if (arguments.next) next_bytes = PrepareNext(&*connection, arguments, deadline, &settings);
    if (!next_bytes) return std::unexpected(next_bytes.error());
    ProgressBar bar(arguments.name, !arguments.no_progress && IsTerminal(STDERR_FILENO));
    std::optional<uint64_t> last_bytes;
    std::optional<int64_t> moved_ns;  // When all bytes had moved.
    bool said = false;
    settings.progress = [&, last_bytes](uint64_t done_bytes, uint64_t total_bytes) mutable {
      // Until now this was the wait for the buffer, which --timeout limits and Ctrl-C ends
      // directly.
      if (!last_bytes) CatchInterrupt();
      const bool moved = load && total_bytes != 0 && done_bytes >= total_bytes;
      const int64_t now_ns = MonotonicNs();
      if (!moved || !moved_ns) moved_ns = moved ? std::optional(now_ns) : std::nullopt;
      const bool settles = moved && now_ns - *moved_ns > kSayWaitNs;
      if (settles) settling_ns = now_ns - *moved_ns;
      if (settles && !std::exchange(said, true)) {
        const Status why = NotSettled(arguments.path == "-" ? "standard input" : arguments.path);
        bar.Say(Concat("waits: ", why.what(), "; ", why.remedy()));
      }
      // Also called while a stream stalls.
      if (moved || done_bytes != last_bytes) watchdog.Feed();
      last_bytes = done_bytes;
      bar.Update(done_bytes, total_bytes);
      return !Interrupted();
    };
    if (arguments.next) {
      auto moved =
          connection->LoadNext(arguments.name, arguments.path, *next_bytes, settings, &generation);
      if (moved || moved.error().code() != Code::kInvalidArgument) return moved;
      const Result<uint64_t> now_bytes = SizeOfNext(arguments, settings);
      resized = now_bytes && *now_bytes != *next_bytes;
      if (!resized) return moved;
      return Fail(Code::kBusy,
                  Concat(arguments.path, " changed while it was loaded: ", moved.error().what()),
                  "load it when nobody writes it; write elsewhere, then rename");
    }
    return load ? connection->Load(arguments.name, arguments.path, settings)
                : connection->Save(arguments.name, arguments.path, settings);
  };
  auto result = transfer();
  while (std::exchange(resized, false) && !deadline.Passed() && !Interrupted()) result = transfer();
  if (!result && Interrupted()) {
    PrintError(Concat("gpushmctl: interrupted: ",
                      arguments.next ? "the buffer keeps the generation that it has\n"
                      : load         ? "the buffer's content is not complete\n"
                                     : "the file was not changed\n"));
    return ExitCode::kInterrupted;
  }
  if (!result) return std::unexpected(result.error());
  const std::string text =
      context.globals.json
          ? TransferJson(arguments.name, arguments.path, *result, settling_ns, generation)
      : load
          ? TransferLine("loaded", arguments.path, arguments.name, *result, settling_ns, generation)
          : TransferLine("saved", arguments.name, arguments.path, *result);
  if (!load && arguments.path == "-") {
    PrintError(text);  // Standard output carries the bytes.
  } else if (auto done = Print(text); !done) {
    return std::unexpected(done.error());
  }
  return ExitCode::kOk;
}

void AddOptions(CLI::App* command, TransferArguments* arguments) {
  command
      ->add_option("--file-method", arguments->file_method,
                   "How the file is read or written: page-cache, pages (the GPU fetches the page "
                   "cache's own pages; to load), direct (O_DIRECT), gds (GPUDirect Storage), or "
                   "auto")
      ->check(CLI::IsMember({"auto", "page-cache", "pages", "direct", "gds"}))
      ->capture_default_str();
  AddBytesOption(command, "--chunk", &arguments->chunk_bytes,
                 "Size of each pinned chunk, 1Mi to 1Gi (default 16Mi, less for small files)");
  command->add_option("--chunks", arguments->chunks, "Number of pinned chunks, 2 to 16 (default 3)")
      ->check(CLI::Range(2U, 16U));
  command
      ->add_option(
          "--threads", arguments->threads,
          "Number of threads that read the file besides the main one; "
          "0: none (default: one for each further core that this container may use, at most 8)")
      ->check(CLI::Range(0U, 64U));
  AddDurationOption(
      command, "--stall-timeout",
      [arguments](int64_t stall_ms) { arguments->stall_ms = std::max<int64_t>(stall_ms, 1); },
      "Give up when no bytes move for this long (default 60s)");
  command->add_flag("--no-progress", arguments->no_progress, "Print no progress bar on a terminal");
}

void AddCommand(CLI::App* app, Context* context, bool load) {
  CLI::App* command =
      load
          ? app->add_subcommand(
                "load",
                "Fill a buffer from a file (-: standard input), or with the tensors "
                "of a safetensors file, an index of shards or a folder")
          : app->add_subcommand(
                "save",
                "Write a buffer's content to a file, replacing it as a whole (-: standard output)");
  const auto arguments = std::make_shared<TransferArguments>();
  const auto file = [&] { command->add_option("FILE", arguments->path, "The file")->required(); };
  if (load) file();
  command->add_option("NAME", arguments->name, "The buffer")->required();
  if (!load) file();
  AddOptions(command, arguments.get());
  AddFormatOption(command, &arguments->format,
                  load ? "What the file holds: tensors (safetensors: each tensor is placed at a "
                         "multiple of 256 bytes and described), raw (bytes as they are), or auto: "
                         "tensors for *.safetensors, its index and folders"
                       : "What to write: tensors (a safetensors file), raw (the buffer's bytes as "
                         "they are), or auto: tensors if the buffer has a description of them");
  if (load) {
    command->add_option("--digest", arguments->digest,
                        "The digest that the content must have, as stat shows it. Other content is "
                        "refused");
    AddBytesOption(
        command, "--bytes", &arguments->bytes,
        "How many bytes must come, neither less nor more: of the file, of all files of a "
        "model, or of standard input");
    CLI::Option* const stay = command->add_flag(
        "--stay", arguments->stay,
        "Load NAME if it lacks its content, try again after each failure, and stay until SIGTERM: "
        "if the broker loses the content, it is loaded again. The containers that load the `file:` "
        "of annotations run this");
    CLI::Option* const next = command->add_flag(
        "--next", arguments->next,
        "Load into a new generation, as large as FILE needs (a stream: of the present "
        "size), and publish it when it is complete. Until then, and after a failure, "
        "readers have the former generation");
    stay->excludes(next);
  } else {
    command->add_flag("--whole", arguments->whole,
                      "Save all bytes of the buffer, not only its content");
  }
  command->callback([=] {
    const uint64_t chunk_bytes = arguments->chunk_bytes;
    if (chunk_bytes != 0 && (chunk_bytes < kMinChunkBytes || chunk_bytes > kMaxChunkBytes)) {
      throw CLI::ValidationError("--chunk", "must be between 1Mi and 1Gi; 16Mi to 32Mi works best");
    }
    if (arguments->name == "-") {
      throw CLI::ValidationError("NAME", load ? "comes last: gpushmctl load - NAME"
                                              : "comes first: gpushmctl save NAME -");
    }
    if (arguments->stay && arguments->path == "-") {
      throw CLI::ValidationError("--stay", "needs a file, which can be read again");
    }
    context->action = [=]() -> Result<ExitCode> {
      if (!arguments->stay) return RunTransfer(*context, *arguments, load);
      auto words = WordsWithoutStay();
      if (!words) return std::unexpected(words.error());
      return StayLoaded(*context, arguments->name, std::move(*words));
    };
  });
}

}  // namespace

void AddTransferCommands(CLI::App* app, Context* context) {
  AddCommand(app, context, /*load=*/true);
  AddCommand(app, context, /*load=*/false);
}

}  // namespace gpushm::ctl
