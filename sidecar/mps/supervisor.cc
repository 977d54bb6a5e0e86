#include "sidecar/mps/supervisor.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ranges>
#include <utility>

#include "platform/daemon/log.h"
#include "platform/daemon/process.h"

namespace gpushm::mps {
namespace {

constexpr int64_t kStartMs = 10'000;    // For the daemon to open its socket.
constexpr int64_t kAnswerMs = 3'000;    // For the daemon to answer.
constexpr int64_t kLookMs = 2'000;      // Between two looks at the server.
constexpr int64_t kStopMs = 2'000;      // For the daemon to end in order.
constexpr int64_t kSettledMs = 10'000;  // A daemon that lived as long is restarted without delay.
constexpr int64_t kLongestRestartMs = 5'000;
constexpr int kUnanswered = 3;  // As many questions in a row: the daemon hangs.
constexpr size_t kAnswerBytes = 64 * 1024;
constexpr std::string_view kStopping = "stopping";  // See MpsState::state.

std::vector<pid_t> Numbers(std::string_view text) {
  std::vector<pid_t> numbers;
  while (!text.empty()) {
    pid_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && number > 0) numbers.push_back(number);
    const auto used = static_cast<size_t>(end - text.data());
    text.remove_prefix(std::min(text.size(), std::max<size_t>(used, 1)));
  }
  return numbers;
}

// The daemon names each client by its PID on a line of its own. A client whose PID namespace the
// daemon does not see, as of another container, has the PID 0.
size_t NumberOfClients(std::string_view answer) {
  const auto names_client = [](const auto line) {
    return !line.empty() && std::ranges::all_of(line, [](char c) { return c >= '0' && c <= '9'; });
  };
  return static_cast<size_t>(std::ranges::count_if(answer | std::views::split('\n'), names_client));
}

std::unexpected<Status> CannotStart(const std::string& program, int error) {
  return Fail(error == ENOENT ? Code::kNotFound : Code::kSystem,
              Concat("cannot start ", program, ": ", strerror(error)),
              "the node's driver must have NVIDIA's MPS programs; the device plugin puts them into "
              "/usr/bin of this container");
}

}  // namespace

bool DaemonListens(const std::string& folder) {
  const std::string path = folder + "/control";
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  if (path.size() >= sizeof address.sun_path) return false;
  path.copy(address.sun_path, path.size());
  // The first is what driver 580 has. NVIDIA documents neither.
  for (const int type : {SOCK_SEQPACKET, SOCK_STREAM}) {
    const UniqueFd fd(socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (fd && connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
      return true;
    }
  }
  return false;
}

// A command to the daemon, and its answer: NVIDIA's program passes both on.
struct Supervisor::Question {
  std::string command;
  uint64_t start = 0;  // Of the daemon that is asked.
  Answered answered;
  pid_t pid = 0;
  UniqueFd answers;
  uint64_t timer = 0;
  std::string text;
};

Supervisor::Supervisor(EventLoop* loop, Options options)
    : loop_(loop), options_(std::move(options)) {
  setenv("CUDA_MPS_PIPE_DIRECTORY", options_.folder.c_str(), 1);
}

Result<void> Supervisor::Start() {
  if (access(options_.folder.c_str(), W_OK | X_OK) != 0) {
    return Fail(
        Code::kNotFound,
        Concat("cannot write to the pipe folder ", options_.folder, ": ", strerror(errno)),
        "mount a folder there that this container's uid can write, and that the pod's other "
        "containers can read");
  }
  // Two daemons in one folder would answer each other's questions. Who may write there can remove
  // the lock's file; then the daemon that is there says so.
  lock_.Reset(open((options_.folder + "/gpushm-mps.lock").c_str(),
                   O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));
  struct flock whole{};
  whole.l_type = F_WRLCK;
  const bool locked = lock_ && fcntl(lock_.get(), F_OFD_SETLK, &whole) == 0;
  if (!locked || DaemonListens(options_.folder)) {
    const bool taken = locked || errno == EAGAIN || errno == EACCES;
    return Fail(
        Code::kBusy,
        taken ? Concat("another gpushm-mps runs its daemon in ", options_.folder)
              : Concat("cannot lock ", options_.folder, ": ", strerror(errno)),
        "one pod of a claim may have gpushm.io/role: mps; this one starts when the other has "
        "ended");
  }
  // The container was restarted, and its daemon with it, if one had served.
  if (const auto former = status::ReadMpsState(options_.folder)) {
    const bool served = former->state == status::kMpsReady || former->state == kStopping;
    shown_.daemon_restarts = former->daemon_restarts + (served ? 1 : 0);
    shown_.server_restarts = former->server_restarts;
  }
  WriteState("starting");
  if (auto started = StartDaemon(); !started) return started;
  LookAgain();
  return {};
}

Result<void> Supervisor::StartDaemon() {
  const auto pid = StartProgram({options_.program, "-f"}, {{STDERR_FILENO, STDOUT_FILENO}});
  if (!pid) return CannotStart(options_.program, pid.error());
  daemon_ = *pid;
  started_ns_ = MonotonicNs();
  AwaitDaemon(++starts_, started_ns_ + kStartMs * 1'000'000);
  return {};
}

void Supervisor::AwaitDaemon(uint64_t start, int64_t end_ns) {
  if (start != starts_ || daemon_ == 0 || stopping_) return;
  if (MonotonicNs() > end_ns) {
    LogError("mps-daemon-hangs", {{"waited_ms", kStartMs}, {"reason", "it serves nobody"}});
    return KillDaemon();
  }
  const auto again = [=, this] { loop_->After(5, [=, this] { AwaitDaemon(start, end_ns); }); };
  if (!DaemonListens(options_.folder)) return again();
  const auto serve = [=, this](const Result<std::string>& answer) {
    if (start != starts_ || daemon_ == 0) return;  // It has ended meanwhile.
    if (!answer) return again();  // Perhaps a question to the former daemon is still asked.
    ready_ = true;
    WriteState(status::kMpsReady);
    LogInfo("mps-ready", {{"folder", options_.folder}, {"restarts", shown_.daemon_restarts}});
    Look();
  };
  if (!options_.server_uid) return serve(std::string());
  Ask(Concat("start_server -uid ", *options_.server_uid), serve);
}

void Supervisor::KillDaemon() {
  if (daemon_ != 0) kill(daemon_, SIGKILL);
}

void Supervisor::OnChildren() {
  int status = 0;
  // Also takes servers, which belong to this process when their daemon has ended.
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    if (pid == daemon_) OnDaemonEnded(status);
  }
}

void Supervisor::OnDaemonEnded(int status) {
  daemon_ = 0;
  ready_ = false;
  shown_.server_pid = 0;
  shown_.server_active = false;
  shown_.clients = 0;
  if (stopping_) {
    if (ended_) std::exchange(ended_, {})();
    return;
  }
  const int64_t lived_ms = (MonotonicNs() - started_ns_) / 1'000'000;
  restart_ms_ =
      lived_ms >= kSettledMs ? 0 : std::clamp<int64_t>(restart_ms_ * 2, 50, kLongestRestartMs);
  LogError("mps-daemon-ended",
           {{"how", HowItEnded(status)}, {"lived_ms", lived_ms}, {"restart_in_ms", restart_ms_}});
  ++shown_.daemon_restarts;
  WriteState("starting");
  Restart();
}

void Supervisor::Restart() {
  loop_->After(restart_ms_, [this] {
    if (stopping_) return;
    const Result<void> started = StartDaemon();
    if (started) return;
    LogError("mps-start-failed", {{"reason", started.error().ToString()}});
    restart_ms_ = kLongestRestartMs;
    Restart();
  });
}

// One question at a time. A second one is answered with kBusy.
void Supervisor::Ask(const std::string& command, Answered answered) {
  std::array<int, 2> in{};
  std::array<int, 2> out{};
  if (question_ != nullptr || pipe2(in.data(), O_CLOEXEC) != 0) {
    return answered(Fail(Code::kBusy, "another question is asked"));
  }
  const UniqueFd in_read(in[0]);
  UniqueFd in_write(in[1]);
  if (pipe2(out.data(), O_CLOEXEC) != 0) return answered(FailSystem(errno, "pipe"));
  UniqueFd out_read(out[0]);
  const UniqueFd out_write(out[1]);
  fcntl(out_read.get(), F_SETFL, O_NONBLOCK);
  const std::string line = command + "\n";
  if (write(in_write.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return answered(FailSystem(errno, "write"));
  }
  in_write.Reset();
  const auto pid = StartProgram({options_.program},
                                {{in_read.get(), STDIN_FILENO}, {out_write.get(), STDOUT_FILENO}});
  if (!pid) return answered(CannotStart(options_.program, pid.error()));
  question_ = std::make_shared<Question>();
  question_->command = command;
  question_->start = starts_;
  question_->answered = std::move(answered);
  question_->pid = *pid;
  question_->answers = std::move(out_read);
  question_->timer = loop_->After(kAnswerMs, [this] {
    question_->timer = 0;
    kill(question_->pid, SIGKILL);
    EndQuestion(Fail(Code::kTimeout, Concat("the MPS daemon does not answer ", question_->command,
                                            " within ", kAnswerMs, " ms")));
  });
  const auto watched = loop_->Watch(question_->answers.get(), EPOLLIN, [this](uint32_t) {
    std::array<char, 4096> bytes{};
    const ssize_t count = read(question_->answers.get(), bytes.data(), bytes.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count > 0 && question_->text.size() < kAnswerBytes) {
      question_->text.append(bytes.data(), static_cast<size_t>(count));
      return;
    }
    EndQuestion(std::string(question_->text));
  });
  if (!watched) EndQuestion(std::unexpected(watched.error()));
}

void Supervisor::EndQuestion(const Result<std::string>& answer) {
  const auto question = std::exchange(question_, nullptr);
  loop_->Unwatch(question->answers.get());
  if (question->timer != 0) loop_->Cancel(question->timer);
  // The program also says something, and ends well, if it finds no daemon.
  const bool same_daemon = daemon_ != 0 && question->start == starts_;
  question->answered(
      same_daemon || !answer ? answer : Fail(Code::kBusy, "the daemon that was asked has ended"));
}

void Supervisor::LookAgain() {
  loop_->After(kLookMs, [this] {
    Look();
    LookAgain();
  });
}

void Supervisor::Look() {
  if (!ready_ || stopping_) return;
  Ask("get_server_list", [this](const Result<std::string>& answer) {
    if (!answer) return NoAnswer(answer.error());
    unanswered_ = 0;
    const std::vector<pid_t> servers = Numbers(*answer);
    NoteServer(servers.empty() ? 0 : servers.front());
    if (servers.empty()) {
      // It ended. The next one is here before the next client comes.
      if (options_.server_uid) {
        Ask(Concat("start_server -uid ", *options_.server_uid), [](const auto&) {});
      }
      return WriteState(status::kMpsReady);
    }
    LookAtServer(servers.front());
  });
}

void Supervisor::LookAtServer(pid_t server) {
  Ask(Concat("get_server_status ", server), [=, this](const Result<std::string>& answer) {
    if (!answer) return NoAnswer(answer.error());
    shown_.server_active = answer->substr(0, answer->find('\n')) == "ACTIVE";
    Ask(Concat("get_client_list ", server), [this](const Result<std::string>& listed) {
      if (!listed) return NoAnswer(listed.error());
      shown_.clients = NumberOfClients(*listed);
      WriteState(status::kMpsReady);
    });
  });
}

void Supervisor::NoteServer(pid_t server) {
  const int64_t before = std::exchange(shown_.server_pid, server);
  if (before == 0 || before == server) return;
  // A daemon of several uids ends a server without clients when another uid comes.
  const bool in_order = !options_.server_uid && shown_.clients == 0;
  if (!in_order) ++shown_.server_restarts;
  shown_.server_active = false;
  shown_.clients = 0;
  if (in_order) return;
  LogWarning("mps-server-ended", {{"pid", before}, {"restarts", shown_.server_restarts}});
}

void Supervisor::NoAnswer(const Status& why) {
  if (stopping_ || why.code() == Code::kBusy) return;
  ++unanswered_;
  LogWarning("mps-no-answer", {{"reason", why.ToString()}, {"times", unanswered_}});
  if (unanswered_ < kUnanswered) return;
  unanswered_ = 0;
  LogError("mps-daemon-hangs",
           {{"waited_ms", kUnanswered * kAnswerMs}, {"reason", why.ToString()}});
  KillDaemon();
}

void Supervisor::Stop(std::function<void()> ended) {
  stopping_ = true;
  if (ready_) WriteState(kStopping);
  if (daemon_ == 0) return ended();
  ended_ = std::move(ended);
  if (question_ != nullptr) {
    kill(question_->pid, SIGKILL);
    EndQuestion(Fail(Code::kBusy, "this process ends"));
  }
  Ask("quit -t 1", [](const auto&) {});
  loop_->After(kStopMs, [this] { KillDaemon(); });
}

// Written next to the file and renamed, so that a reader sees it whole. Others who may write in the
// folder must not hold it up: what they put under these two names gives way.
void Supervisor::WriteState(std::string_view state) {
  const std::string path = Concat(options_.folder, "/", status::kMpsStateFile);
  const std::string fresh = path + ".new";
  shown_.state = state;
  shown_.time_unix_ms = UnixNs() / 1'000'000;
  const std::string text = ToJson(shown_);
  const auto remove_file_or_move_folder = [](const std::string& name) {
    if (unlink(name.c_str()) == 0 || errno == ENOENT) return;
    rename(name.c_str(), Concat(name, ".", UnixNs()).c_str());
  };
  remove_file_or_move_folder(fresh);
  const UniqueFd fd(open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  const auto put = [&] { return rename(fresh.c_str(), path.c_str()) == 0; };
  bool written =
      fd && write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (written && !put()) {
    remove_file_or_move_folder(path);
    written = put();
  }
  if (!written) LogWarning("mps-state-not-written", {{"path", path}, {"reason", strerror(errno)}});
}

}  // namespace gpushm::mps
