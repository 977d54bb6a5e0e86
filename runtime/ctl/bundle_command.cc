// gpushmctl support-bundle: what this container sees of gpushm, in one archive
// (docs/design/support-bundle.md).
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contract/protocol/messages.h"
#include "contract/status/status.h"
#include "platform/base/unique_fd.h"
#include "runtime/ctl/bundle.h"
#include "runtime/ctl/bundle_parts.h"
#include "runtime/ctl/commands.h"
#include "runtime/ctl/doctor_facts.h"
#include "runtime/ctl/examine.h"
#include "runtime/ctl/format.h"
#include "runtime/ctl/http.h"
#include "runtime/ctl/terminal.h"

namespace gpushm::ctl {
namespace {

// The time for all parts is as long as for six that each use up theirs.
constexpr int64_t kWholeTries = 6;
// A reader of a pipe that takes nothing for this time ends the bundle.
constexpr int64_t kReaderMs = 30'000;
// A node of 16 GPUs with 500 buffers each sends 3 MiB. The plugin's container, where this runs, has
// 256 MiB for the plugin and this process.
constexpr size_t kAnswerBytes = size_t{8} << 20;

struct Arguments {
  std::string file{"-"};
  std::string node{kNodeAddress};
  std::string metrics{"127.0.0.1:9400"};
  std::string config{"/etc/gpushm/plugin.yaml"};
  std::string cdi_folder{"/var/run/cdi"};
};

// Where the archive goes. A file that could not be completed is removed.
class Target {
 public:
  static Result<Target> Open(const std::string& path) {
    if (path == "-") {
      if (!IsTerminal(STDOUT_FILENO)) return Target(path, UniqueFd());
      return Fail(Code::kInvalidArgument,
                  "standard output is a terminal, and a bundle is an archive",
                  "write it to a file: gpushmctl support-bundle gpushm.tar, or "
                  "gpushmctl support-bundle > gpushm.tar");
    }
    // O_EXCL: in a folder that others write, a link of theirs would choose the file.
    UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (file) return Target(path, std::move(file));
    if (errno == EEXIST) {
      return Fail(Code::kAlreadyExists, Concat(path, " already exists"),
                  "name a file that does not exist yet");
    }
    return FailSystem(errno, Concat("create ", path),
                      "name a file in a folder that you can write, or write to standard output: "
                      "kubectl exec POD -c CONTAINER -- gpushmctl support-bundle > gpushm.tar");
  }

  Target(Target&& other) noexcept
      : path_(std::move(other.path_)),
        file_(std::move(other.file_)),
        complete_(std::exchange(other.complete_, true)) {}
  Target& operator=(Target&&) = delete;
  ~Target() {
    if (!complete_) unlink(path_.c_str());
  }

  bool is_file() const { return file_.valid(); }

  Result<void> Write(std::string_view text) const {
    const int fd = is_file() ? file_.get() : STDOUT_FILENO;
    while (!text.empty()) {
      pollfd entry{.fd = fd, .events = POLLOUT, .revents = 0};
      const int ready = poll(&entry, 1, static_cast<int>(kReaderMs));
      if (ready == 0) {
        return Fail(Code::kTimeout, Concat("nobody read the bundle for ", kReaderMs / 1000, " s"),
                    "write it to a file");
      }
      // A pipe that is ready takes this much without blocking (pipe(7)).
      const ssize_t written = write(fd, text.data(), std::min<size_t>(text.size(), 4096));
      if (written < 0 && errno != EINTR && errno != EAGAIN) {
        return FailSystem(
            errno,
            Concat("write the bundle to ", is_file() ? path_ : std::string("standard output")),
            "write it to a place with room for 32Mi");
      }
      text.remove_prefix(static_cast<size_t>(std::max<ssize_t>(written, 0)));
    }
    return {};
  }

  // Some file systems report a full disk only here.
  Result<void> Complete() {
    if (is_file() && fsync(file_.get()) != 0 && errno != EINVAL) {
      return FailSystem(errno, Concat("write the bundle to ", path_));
    }
    complete_ = true;
    return {};
  }

 private:
  Target(std::string path, UniqueFd file)
      : path_(std::move(path)), file_(std::move(file)), complete_(!file_.valid()) {}

  std::string path_;
  UniqueFd file_;  // None: standard output.
  bool complete_;
};

// The folder of the container's socket. In the sidecar, which has a folder for each container, that
// of the first.
std::string SocketFolder(const Globals& globals) {
  const SocketFacts facts = GatherSocket(globals.folder, globals.pod_uid);
  if (facts.error != ENOENT || !globals.pod_uid.empty()) return globals.folder;
  std::vector<std::string> folders;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(facts.folder, ignored)) {
    if (std::filesystem::is_socket(entry.path() / protocol::kSocketName, ignored)) {
      folders.push_back(entry.path());
    }
  }
  return folders.empty() ? globals.folder : std::ranges::min(folders);
}

class Collector {
 public:
  Collector(const Context& context, const Arguments& arguments, Bundle* bundle, Deadline whole)
      : context_(context),
        arguments_(arguments),
        bundle_(bundle),
        wait_ms_(std::max<int64_t>(context.globals.timeout_ms.value_or(kTryMs), 1)),
        whole_(whole) {
    context_.globals.folder = SocketFolder(context.globals);
  }

  Result<void> Run() {
    for (const auto step :
         {&Collector::Here, &Collector::Broker, &Collector::Plugin, &Collector::Doctor}) {
      if (auto done = (this->*step)(); !done) return done;
    }
    return {};
  }

 private:
  using Part = Bundle::Part;

  Result<void> Here() {
    if (auto done = Add("versions.json", "versions of gpushm, driver and system",
                        [&] { return Part{.text = ReadVersions(wait_ms_)}; });
        !done) {
      return done;
    }
    if (auto done = Add("system.json", "this process, its limits, mounts and device nodes",
                        [] { return Part{.text = ReadSystem()}; });
        !done) {
      return done;
    }
    return Add("environment.json", "known variables of gpushm, CUDA and the driver", [] {
      std::vector<std::string> variables;
      for (char** each = environ; *each != nullptr; ++each) variables.emplace_back(*each);
      return Part{.text = EnvironmentJson(variables)};
    });
  }

  // A broker that did not answer once is not asked again.
  Result<void> Broker() {
    std::optional<Status> silent;
    Result<Connection> connection = Fail(Code::kUnavailable, "not asked");
    const auto ask = [&](auto call) -> Result<Part> {
      if (silent) return std::unexpected(*silent);
      Result<Part> part = call();
      if (!part) silent = part.error();
      return part;
    };
    if (auto done = Add("broker.json", "the broker: container, GPUs, pools",
                        [&] {
                          return ask([&]() -> Result<Part> {
                            connection = context_.Connect();
                            if (!connection) return std::unexpected(connection.error());
                            view_.facts = connection->Broker();
                            if (!view_.facts) return std::unexpected(view_.facts.error());
                            return Part{.text = BrokerJson(*view_.facts)};
                          });
                        });
        !done) {
      return done;
    }
    if (silent) view_.facts = std::unexpected(*silent);
    Snapshot snapshot;
    if (auto done = Add("buffers.json", "the registry: buffers, signals, barriers and rings",
                        [&] {
                          return ask([&]() -> Result<Part> {
                            auto buffers = connection->List();
                            if (!buffers) return std::unexpected(buffers.error());
                            snapshot.buffers = std::move(*buffers);
                            auto holders = connection->Holders("");
                            if (!holders) return std::unexpected(holders.error());
                            snapshot.holders = std::move(*holders);
                            snapshot.looks = connection->Look(snapshot.buffers);
                            return Part{.text = ListJson(snapshot)};
                          });
                        });
        !done) {
      return done;
    }
    view_.cuipc_buffers = static_cast<size_t>(std::ranges::count(
        snapshot.buffers, uint32_t{GPUSHM_TRANSPORT_CUIPC}, &gpushm_info::transport));
    return Add("holders.json", "the leases: which container holds which generation", [&] {
      return ask([&]() -> Result<Part> { return HoldersJson(snapshot.holders); });
    });
  }

  Result<void> Plugin() {
    if (auto done = Add("plugin/status.json", "the node's GPUs, pods, buffers and holders",
                        [&]() -> Result<Part> {
                          const auto body = Get(arguments_.node, "/status.json", "--node");
                          if (!body) return std::unexpected(body.error());
                          const auto node = status::FromJson(*body);
                          if (!node) return std::unexpected(node.error());
                          return Part{.text = status::ToJson(*node)};
                        });
        !done) {
      return done;
    }
    if (auto done = Add("plugin/metrics.txt", "the plugin's metrics",
                        [&]() -> Result<Part> {
                          const auto body = Get(arguments_.metrics, "/metrics", "--metrics");
                          if (!body) return std::unexpected(body.error());
                          Part part{.text = MetricsText(*body)};
                          if (!part.text.empty()) return part;
                          return Fail(Code::kNotFound,
                                      Concat("the page of ", arguments_.metrics,
                                             " has no metrics of gpushm"),
                                      "if the plugin's metrics.address is another one, give it "
                                      "with --metrics HOST:PORT");
                        });
        !done) {
      return done;
    }
    if (auto done = Add("plugin/config.yaml", "the plugin's configuration file",
                        [&] { return ReadConfiguration(arguments_.config); });
        !done) {
      return done;
    }
    return Add("plugin/cdi.json", "what containers got: gpushm's CDI specs",
               [&] { return ReadCdiSpecs(arguments_.cdi_folder); });
  }

  Result<void> Doctor() {
    return Add("doctor.json", "what gpushmctl doctor finds", [&] {
      const Globals& globals = context_.globals;
      return Part{.text = DoctorJson(Examine({.folder = globals.folder, .pod_uid = globals.pod_uid},
                                             view_, wait_ms_, whole_))};
    });
  }

  Result<void> Add(const char* name, const char* what, const Bundle::Make& make) {
    return bundle_->Add(name, what, make);
  }

  Result<std::string> Get(const std::string& where, const char* path, const char* option) const {
    const Result<Address> address = ParseAddress(where);
    if (!address) return std::unexpected(address.error());
    const auto body = HttpGet(*address, path, Deadline::AfterMs(wait_ms_), kAnswerBytes);
    if (body) return body;
    return Fail(body.error().code(), body.error().what(),
                Concat("the plugin answers in its own container; if it uses another address, give "
                       "it with ",
                       option, " HOST:PORT"));
  }

  Context context_;
  const Arguments& arguments_;
  Bundle* bundle_;
  int64_t wait_ms_;
  Deadline whole_;
  BrokerView view_{Fail(Code::kUnavailable, "not asked")};
};

std::string Summary(const Bundle& bundle, const std::string& where) {
  const auto& entries = bundle.entries();
  const auto missing = std::ranges::count(entries, true, &BundleEntry::missing);
  std::string text = Concat("wrote ", Printable(where), ": ",
                            entries.size() - static_cast<size_t>(missing), " parts\n");
  for (const BundleEntry& entry : entries) {
    if (entry.why.empty()) continue;
    text += Concat(entry.missing ? "not in it: " : "not complete: ", entry.name, ": ",
                   Printable(entry.why), "\n");
  }
  return text +
         "It has names of pods, containers, buffers and images. Look at it before you publish it.\n";
}

Result<ExitCode> Run(const Context& context, const Arguments& arguments) {
  Result<Target> target = Target::Open(arguments.file);
  if (!target) return std::unexpected(target.error());
  const int64_t wait_ms = std::max<int64_t>(context.globals.timeout_ms.value_or(kTryMs), 1);
  const Deadline whole = Deadline::AfterMs(kWholeTries * wait_ms);
  Bundle bundle([&](std::string_view text) { return target->Write(text); }, UnixNs(), whole);
  if (auto done = Collector(context, arguments, &bundle, whole).Run(); !done) {
    return std::unexpected(done.error());
  }
  if (auto done = bundle.Finish(); !done) return std::unexpected(done.error());
  if (auto done = target->Complete(); !done) return std::unexpected(done.error());
  const std::string report =
      context.globals.json
          ? bundle.Index()
          : Summary(bundle, target->is_file() ? arguments.file : "the bundle to standard output");
  if (target->is_file()) return PrintDone(report);
  PrintError(report);
  return ExitCode::kOk;
}

}  // namespace

void AddBundleCommand(CLI::App* app, Context* context) {
  CLI::App* const command = app->add_subcommand(
      "support-bundle",
      "Collect what helps to find a fault into a tar archive: versions, configuration, registry, "
      "leases, the node's status and metrics; neither content of buffers nor secrets");
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("FILE", arguments->file, "The archive, a new file; -: standard output")
      ->capture_default_str();
  command->add_option("--node", arguments->node, "The plugin's status address")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  command->add_option("--metrics", arguments->metrics, "The plugin's address of metrics")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  command->add_option("--config", arguments->config, "The plugin's configuration file")
      ->type_name("FILE")
      ->capture_default_str();
  command->add_option("--cdi-folder", arguments->cdi_folder, "The plugin's cdi-folder")
      ->type_name("DIR")
      ->capture_default_str();
  command->callback([=] { context->action = [=] { return Run(*context, *arguments); }; });
}

}  // namespace gpushm::ctl
