#include "plugin/kubelet/registration.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "platform/daemon/event_loop.h"
#include "platform/daemon/log.h"
#include "platform/daemon/unix_socket.h"
#include "platform/daemon/worker.h"
#include "plugin/kubelet/device_plugin.grpc.pb.h"
#include "plugin/kubelet/folder_watch.h"
#include "plugin/kubelet/grpc_support.h"

namespace gpushm::plugin::kubelet {
namespace {

namespace api = ::v1beta1;

// The kubelet's answer is empty; anything near this size does not come from a kubelet.
constexpr int kMaxAnswerBytes = 64 * 1024;
constexpr std::chrono::milliseconds kDrainStep{10};

// Suffixes of a resource's two sockets, after its name.
constexpr char kSuffix[] = ".sock";
constexpr char kOtherSuffix[] = "-2.sock";

struct SocketFiles {
  std::string mine;
  std::string other;
};

// Which of the two names this plugin takes first.
SocketFiles FilesOf(const std::string& name, const Registration::Options& options) {
  SocketFiles files{.mine = name + kSuffix, .other = name + kOtherSuffix};
  if (!options.beside) return files;
  const auto path = [&options](const std::string& file) {
    return Concat(options.folder, "/", file);
  };
  // Not the previous plugin's name, even if that plugin was killed: the kubelet may not have
  // noticed yet.
  const bool other_is_its = SomeoneAccepts(path(files.other));
  if (SomeoneAccepts(path(files.mine)) || (Identify(path(files.mine)) && !other_is_its)) {
    std::swap(files.mine, files.other);
  }
  return files;
}

struct Request {
  std::string kubelet_path;
  api::RegisterRequest message;
  int64_t wait_ms;
};

Result<void> CallRegister(const Request& request, grpc::ClientContext* context) {
  const auto stub = api::Registration::NewStub(NewChannel(request.kubelet_path, kMaxAnswerBytes));
  context->set_deadline(std::chrono::system_clock::now() +
                        std::chrono::milliseconds(request.wait_ms));
  api::Empty answer;
  const grpc::Status status = stub->Register(context, request.message, &answer);
  if (!status.ok())
    return std::unexpected(FromGrpc(status, Concat("register ", request.message.resource_name())));
  return {};
}

}  // namespace

// Everything below runs on the loop's thread unless it says otherwise.
class Registration::Registrar {
 public:
  Registrar(Options options, Handler* handler, std::unique_ptr<EventLoop> loop)
      : options_(std::move(options)),
        kubelet_path_(Concat(options_.folder, "/", options_.kubelet_socket)),
        watch_(options_.folder),
        loop_(std::move(loop)) {
    for (const binding::Resource resource : binding::kResources) Add(resource, handler);
    loop_->Post([this] { Begin(); });
    thread_ = std::thread([this] { loop_->Run(); });
  }
  ~Registrar() { Stop(); }

  // Any thread.
  void SetDevices(binding::Resource resource, std::vector<Advertised> devices) {
    Line* const line = &LineOf(resource);
    line->server->SetDevices(std::move(devices));
    loop_->Post([this, line] {
      if (std::exchange(line->advertised, true)) return;
      Update(line, [](ResourceState* state) { state->advertised = true; });
      Restart(line);
    });
  }

  // Any thread.
  void Renew(binding::Resource resource) {
    Line* const line = &LineOf(resource);
    loop_->Post([this, line] {
      LogWarning("registration-renewed", {{"resource", line->name}});
      line->grace_ms = std::min(2 * line->grace_ms, options_.times.backoff_max_ms);
      Restart(line);
    });
  }

  // Any thread.
  void HandOver() {
    const std::lock_guard lock(mutex_);
    for (Line& line : lines_) line.server->ForwardTo(PathOf(line.other_file));
  }

  // Any thread.
  void Drain(const Deadline& deadline) const {
    int64_t busy_ns = MonotonicNs();
    while (!deadline.Passed() && MonotonicNs() - busy_ns < options_.times.drain_ms * 1'000'000) {
      std::this_thread::sleep_for(kDrainStep);
      const bool busy = std::any_of(lines_.begin(), lines_.end(),
                                    [](const Line& line) { return line.server->calls() > 0; });
      if (busy) busy_ns = MonotonicNs();
    }
  }

  // Any thread.
  State state() const {
    const std::lock_guard lock(mutex_);
    return state_;
  }

  // Any thread.
  bool WaitFor(const std::function<bool(const State&)>& reached, const Deadline& deadline) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::nanoseconds(deadline.RemainingNs()),
                             [&] { return reached(state_); });
  }

  // Any thread but the loop's, once.
  void Stop() {
    if (!thread_.joinable()) return;
    const Deadline deadline = Deadline::AfterMs(options_.times.stop_ms);
    loop_->Post([this] {
      for (Line& line : lines_) {
        if (line.call) line.call->TryCancel();
        line.phase = Phase::kStopped;
        CloseSocket(&line);
      }
    });
    loop_->Stop();
    thread_.join();
    for (Line& line : lines_) {
      line.worker.reset();  // Its Register was cancelled.
      line.server->Shutdown(deadline);
    }
    LogInfo("plugin-unregistered", {{"folder", options_.folder}});
  }

 private:
  enum class Phase {
    kWaiting,      // For SetDevices, or for the kubelet's socket.
    kEnding,       // Waits for the former stream's end.
    kPausing,      // Grace or back-off.
    kRegistering,  // Register is in progress.
    kOpening,      // It succeeded; waits for the stream.
    kServing,
    kStopped,
  };

  // One resource.
  struct Line {
    binding::Resource resource = binding::Resource::kMemory;
    std::string name;
    std::string file;  // The socket's name in the folder; changed with mutex_ held.
    std::string other_file;
    std::string path;
    std::unique_ptr<PluginServer> server;
    std::unique_ptr<Worker> worker;  // Register blocks.
    std::optional<ListeningSocket> socket;
    bool advertised = false;
    Phase phase = Phase::kWaiting;
    uint64_t attempt = 0;  // Answers to former attempts are ignored.
    std::shared_ptr<grpc::ClientContext> call;
    std::optional<FileId> knows_us;  // The kubelet's socket at the last attempt.
    size_t open = 0;                 // Number of open streams.
    uint64_t timer = 0;
    int64_t backoff_ms = 0;
    int64_t grace_ms = 0;
    int64_t serving_since_ns = 0;
    std::string listen_error;  // Why a serving line has no socket.
  };

  std::string PathOf(const std::string& file) const { return Concat(options_.folder, "/", file); }

  Line& LineOf(binding::Resource resource) { return lines_.at(static_cast<size_t>(resource)); }

  void Add(binding::Resource resource, Handler* handler) {
    Line* const line = &LineOf(resource);
    const SocketFiles files = FilesOf(options_.sockets[resource], options_);
    line->resource = resource;
    line->name = options_.names.Of(resource);
    line->file = files.mine;
    line->other_file = files.other;
    line->path = PathOf(line->file);
    // A kubelet before 1.37 ends the streams together with the previous plugin's: retry immediately
    // then.
    line->backoff_ms = options_.beside ? 1 : options_.times.backoff_first_ms;
    line->grace_ms = options_.times.grace_ms;
    line->worker = std::make_unique<Worker>();
    PluginServer::Config config;
    config.resource = resource;
    config.on_call = options_.on_call;
    config.on_streams = [this, line](size_t open) {
      loop_->Post([this, line, open] { OnStreams(line, open); });
    };
    line->server = std::make_unique<PluginServer>(std::move(config), handler);
  }

  template <typename Change>
  void Update(Line* line, Change change) {
    {
      const std::lock_guard lock(mutex_);
      change(&state_.Of(line->resource));
    }
    changed_.notify_all();
  }

  void Begin() {
    Result<void> watched;
    if (!options_.inotify) {
      watched = Fail(Code::kUnsupported, "inotify is switched off");
    } else if (watch_.fd() < 0) {
      watched =
          Fail(Code::kExhausted, "no free inotify instance", "raise fs.inotify.max_user_instances");
    } else {
      watched = loop_->Watch(watch_.fd(), EPOLLIN, [this](uint32_t) {
        watch_.Drain();
        Look();
      });
    }
    blind_ = !watched.has_value();
    if (blind_) LogWarning("folder-not-watched", {{"reason", watched.error().ToString()}});
    LookAgainAndAgain();
  }

  void LookAgainAndAgain() {
    Look();
    loop_->After(blind_ ? options_.times.poll_blind_ms : options_.times.poll_ms,
                 [this] { LookAgainAndAgain(); });
  }

  // Compares the folder with its last state.
  void Look() {
    std::vector<std::string> paths = {kubelet_path_};
    for (const Line& line : lines_) paths.push_back(line.path);
    watch_.Refresh(paths);
    const std::optional<FileId> kubelet = Identify(kubelet_path_);
    const bool changed = kubelet != kubelet_;
    if (changed && !kubelet) LogInfo("kubelet-gone", {{"socket", kubelet_path_}});
    if (changed && kubelet) {
      LogInfo(seen_kubelet_ ? "kubelet-restarted" : "kubelet-found", {{"socket", kubelet_path_}});
      seen_kubelet_ = true;
    }
    kubelet_ = kubelet;
    for (Line& line : lines_) LookAfter(&line, changed && kubelet);
  }

  void LookAfter(Line* line, bool new_kubelet) {
    if (line->socket && !line->socket->InPlace()) {
      LogInfo("socket-removed", {{"resource", line->name}, {"socket", line->path}});
      CloseSocket(line);
    }
    if (new_kubelet) {
      line->backoff_ms = options_.times.backoff_first_ms;
      // An attempt may have found the new socket before this check.
      if (line->knows_us != kubelet_ || line->phase == Phase::kPausing) return Restart(line);
    }
    if (line->socket) return;
    // A kubelet that reads the list needs no socket until it registers the plugin again (invariant
    // 3).
    if (line->phase == Phase::kServing) return ListenOnly(line);
    // A line that waits or pauses listens before its next attempt; an attempt in progress is in
    // vain.
    if (line->phase == Phase::kRegistering || line->phase == Phase::kOpening) Restart(line);
  }

  void ListenOnly(Line* line) {
    const Result<void> listening = Listen(line);
    const std::string error = listening ? std::string() : listening.error().ToString();
    if (std::exchange(line->listen_error, error) == error) return;
    if (!listening) LogWarning("listen-failed", {{"resource", line->name}, {"reason", error}});
    Update(line, [&](ResourceState* state) { state->last_error = error; });
  }

  // Starts over: the former registration does not count any more. Invariant 2.
  void Restart(Line* line) {
    if (!line->advertised || line->phase == Phase::kStopped) return;
    Forget(line);
    if (line->open == 0) return Settle(line, /*ended_it=*/false);
    line->phase = Phase::kEnding;
    line->server->EndStreams();
    SetTimer(line, options_.times.end_ms, [this, line] {
      line->server->CancelStreams();
      SetTimer(line, options_.times.end_ms, [this, line] {
        Failed(line, Status(Code::kTimeout, "a former ListAndWatch stream does not end"));
      });
    });
  }

  void Forget(Line* line) {
    loop_->Cancel(line->timer);
    ++line->attempt;
    if (line->call) line->call->TryCancel();
    line->call.reset();
    line->phase = Phase::kWaiting;
    Update(line, [](ResourceState* state) { state->registered = false; });
  }

  void SetTimer(Line* line, int64_t wait_ms, EventLoop::Task task) {
    loop_->Cancel(line->timer);
    line->timer = loop_->After(wait_ms, std::move(task));
  }

  void Settle(Line* line, bool ended_it) {
    if (!ended_it && (!kubelet_ || line->knows_us != kubelet_)) return Try(line);
    line->phase = Phase::kPausing;
    SetTimer(line, line->grace_ms, [this, line] { Try(line); });
  }

  void Try(Line* line) {
    if (line->open > 0) return Restart(line);  // From an attempt that seemed to have failed.
    const Result<void> listening = Listen(line);
    if (!listening) {
      // The previous plugin listens there again, as after a restart of the kubelet.
      if (options_.beside && listening.error().code() == Code::kAlreadyExists) TakeOtherName(line);
      return Failed(line, listening.error());
    }
    if (!kubelet_) {
      line->phase = Phase::kWaiting;  // Look() notices when it appears.
      return;
    }
    line->phase = Phase::kRegistering;
    line->knows_us = Identify(kubelet_path_);
    line->call = std::make_shared<grpc::ClientContext>();
    Request request;
    request.kubelet_path = kubelet_path_;
    request.wait_ms = options_.times.register_ms;
    request.message.set_version("v1beta1");
    request.message.set_endpoint(line->file);
    request.message.set_resource_name(line->name);
    request.message.mutable_options()->set_pre_start_required(true);
    line->worker->Run(
        [this, line, request = std::move(request), call = line->call, attempt = ++line->attempt] {
          loop_->Post([this, line, attempt, done = CallRegister(request, call.get())] {
            if (attempt == line->attempt) OnRegistered(line, done);
          });
        });
  }

  Result<void> Listen(Line* line) {
    if (line->socket && line->socket->InPlace()) return {};
    CloseSocket(line);
    if (SomeoneAccepts(line->path))
      return Fail(Code::kAlreadyExists, Concat("another process serves ", line->path),
                  "run one plugin per node");
    Result<ListeningSocket> socket = ListeningSocket::Bind(line->path);
    if (!socket) return std::unexpected(socket.error());
    const Result<void> watched = loop_->Watch(socket->fd(), EPOLLIN, [line](uint32_t) {
      for (UniqueFd connection = line->socket->Accept(); connection;
           connection = line->socket->Accept())
        line->server->Serve(std::move(connection));
    });
    if (!watched) return watched;
    line->socket.emplace(std::move(*socket));
    watch_.Refresh({line->path});
    return {};
  }

  void TakeOtherName(Line* line) {
    if (SomeoneAccepts(PathOf(line->other_file))) return;
    CloseSocket(line);
    const std::lock_guard lock(mutex_);
    std::swap(line->file, line->other_file);
    line->path = PathOf(line->file);
  }

  void CloseSocket(Line* line) {
    if (!line->socket) return;
    loop_->Unwatch(line->socket->fd());
    line->socket.reset();
  }

  void OnRegistered(Line* line, const Result<void>& done) {
    line->call.reset();
    if (!done) {
      if (done.error().code() == Code::kInternal) TakeOtherName(line);  // The kubelet refused it.
      return Failed(line, done.error());
    }
    Update(line, [](ResourceState* state) {
      state->registered = true;
      ++state->registrations;
    });
    LogInfo("plugin-registered", {{"resource", line->name}, {"socket", line->path}});
    if (line->open > 0) return Serving(line);
    line->phase = Phase::kOpening;
    SetTimer(line, options_.times.open_ms, [this, line] {
      Failed(line, Status(Code::kTimeout,
                          "the kubelet registered the resource, but did not open its device list"));
    });
  }

  void Serving(Line* line) {
    loop_->Cancel(line->timer);
    line->phase = Phase::kServing;
    line->serving_since_ns = MonotonicNs();
    line->listen_error.clear();
    Update(line, [](ResourceState* state) { state->last_error.clear(); });
  }

  void OnStreams(Line* line, size_t open) {
    const size_t before = std::exchange(line->open, open);
    Update(line, [&](ResourceState* state) { state->stream_open = open > 0; });
    if (line->phase == Phase::kOpening && open > 0) return Serving(line);
    if (line->phase == Phase::kEnding && open == 0) {
      loop_->Cancel(line->timer);
      return Settle(line, /*ended_it=*/true);
    }
    // Also if another stream is left: the kubelet treats the resource as gone after the end of any.
    if (line->phase == Phase::kServing && open < before) {
      const int64_t lasted_ms = (MonotonicNs() - line->serving_since_ns) / 1'000'000;
      if (lasted_ms >= options_.times.stable_ms) line->backoff_ms = options_.times.backoff_first_ms;
      LogWarning("stream-lost", {{"resource", line->name}, {"lasted_ms", lasted_ms}});
      Failed(line, Status(Code::kPeerDied, "the kubelet's ListAndWatch stream ended"));
    }
  }

  // Tries again after the back-off.
  void Failed(Line* line, const Status& status) {
    Forget(line);
    Update(line, [&](ResourceState* state) {
      ++state->failures;
      state->last_error = status.ToString();
    });
    LogWarning(
        "registration-failed",
        {{"resource", line->name}, {"reason", status.ToString()}, {"retry_ms", line->backoff_ms}});
    line->phase = Phase::kPausing;
    SetTimer(line, line->backoff_ms, [this, line] { Restart(line); });
    line->backoff_ms = std::min(2 * line->backoff_ms, options_.times.backoff_max_ms);
  }

  const Options options_;
  const std::string kubelet_path_;
  FolderWatch watch_;
  const std::unique_ptr<EventLoop> loop_;
  std::array<Line, binding::kResources.size()> lines_;
  std::optional<FileId> kubelet_;  // Its socket at the last check.
  bool seen_kubelet_ = false;
  bool blind_ = false;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  State state_;  // Guarded by mutex_.
  std::thread thread_;
};

Result<std::unique_ptr<Registration>> Registration::Start(Options options, Handler* handler) {
  RouteGrpcLog();
  for (const std::string& name : options.sockets) {
    const std::string longest = Concat(options.folder, "/", name, kOtherSuffix);
    if (auto fits = ListeningSocket::CheckPath(longest); !fits)
      return std::unexpected(fits.error());
  }
  if (!options.beside) {
    if (auto alone = CheckAlone(options); !alone) return std::unexpected(alone.error());
  }
  Result<std::unique_ptr<EventLoop>> loop = EventLoop::Create();
  if (!loop) return std::unexpected(loop.error());
  return std::unique_ptr<Registration>(
      new Registration(std::make_unique<Registrar>(std::move(options), handler, std::move(*loop))));
}

Result<void> Registration::CheckAlone(const Options& options) {
  for (const binding::Resource resource : binding::kResources) {
    for (const char* const suffix : {kSuffix, kOtherSuffix}) {
      const std::string path = Concat(options.folder, "/", options.sockets[resource], suffix);
      if (SomeoneAccepts(path)) {
        return Fail(Code::kAlreadyExists, Concat("another process serves ", path),
                    "run one plugin per node; a standby plugin needs the same state-folder");
      }
    }
  }
  return {};
}

Registration::Registration(std::unique_ptr<Registrar> registrar)
    : registrar_(std::move(registrar)) {}
Registration::~Registration() = default;

void Registration::SetDevices(binding::Resource resource, std::vector<Advertised> devices) {
  registrar_->SetDevices(resource, std::move(devices));
}
State Registration::state() const { return registrar_->state(); }
bool Registration::WaitFor(const std::function<bool(const State&)>& reached,
                           const Deadline& deadline) const {
  return registrar_->WaitFor(reached, deadline);
}
void Registration::HandOver() { registrar_->HandOver(); }
void Registration::Drain(const Deadline& deadline) const { registrar_->Drain(deadline); }
void Registration::Renew(binding::Resource resource) { registrar_->Renew(resource); }
void Registration::Stop() { registrar_->Stop(); }

}  // namespace gpushm::plugin::kubelet
