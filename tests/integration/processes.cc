#include "tests/integration/processes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "contract/protocol/channel.h"
#include "platform/base/testing/main.h"

namespace gpushm::integration {
namespace {

constexpr int kWorkerChannel = 3;

const testing::TestRole kWorkerRole("worker", WorkerMain);
const testing::TestRole kIsolatedWorkerRole("isolated-worker", IsolatedWorkerMain);

Answer ParseAnswer(const char* text) {
  char* rest = nullptr;
  Answer answer;
  answer.status = static_cast<int>(std::strtol(text, &rest, 10));
  answer.value = std::strtoll(rest, nullptr, 10);
  return answer;
}

}  // namespace

std::string ProgramPath(const std::string& name) {
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  return self.parent_path().parent_path() / "bin" / name;
}

Process::Process(const std::vector<std::string>& command, int channel) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_ = fork();
  if (pid_ != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (channel == kWorkerChannel) {
    fcntl(channel, F_SETFD, 0);
  } else if (channel >= 0) {
    dup2(channel, kWorkerChannel);
  }
  execv(arguments[0], arguments.data());
  _exit(127);
}

Process::Process(Process&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
Process& Process::operator=(Process&& other) noexcept {
  std::swap(pid_, other.pid_);
  return *this;
}

void Process::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void Process::Wait() {
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

Broker::Broker(const std::string& folder, const std::string& pool,
               const std::vector<std::string>& arguments)
    : command_{"/usr/bin/env",
               "-u",
               "CUDA_MPS_PIPE_DIRECTORY",
               ProgramPath("gpushm-broker"),
               "--folder",
               folder,
               "--pool",
               pool,
               "--log-level",
               "warning"} {
  command_.insert(command_.end(), arguments.begin(), arguments.end());
  // With containers, each of them has a socket; otherwise there is one.
  const auto flag = std::ranges::find(command_, "--container");
  socket_ = Concat(folder, "/", flag == command_.end() ? std::string() : Concat(flag[1], "/"),
                   protocol::kSocketName);
  Start();
}

void Broker::Start() {
  process_ = Process(command_, -1);
  const Deadline deadline = Deadline::AfterMs(kPatienceMs);
  while (!protocol::Connect(socket_)) {
    ASSERT_FALSE(deadline.Passed())
        << "the broker did not listen at " << socket_ << " before the deadline";
    poll(nullptr, 0, 1);
  }
}

std::string LogOfBroker(const std::string& folder, const std::vector<std::string>& arguments) {
  std::string command =
      Concat("env -u CUDA_MPS_PIPE_DIRECTORY ", ProgramPath("gpushm-broker"), " --folder ", folder);
  for (const std::string& argument : arguments) command += Concat(" '", argument, "'");
  FILE* const output = popen((command + " 2>&1").c_str(), "r");
  std::string log;
  char text[512];
  while (fgets(text, sizeof text, output) != nullptr) log += text;
  pclose(output);
  return log;
}

gpushm_client* OpenClient(const std::string& folder) {
  auto options = Sized<gpushm_open_options>();
  options.folder = folder.c_str();
  gpushm_client* client = nullptr;
  EXPECT_EQ(gpushm_open(&options, &client), GPUSHM_OK) << gpushm_last_error()->text;
  return client;
}

Worker::Worker(const std::string& folder, const std::string& pod_uid) {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  channel_.Reset(ends[0]);
  const UniqueFd theirs(ends[1]);
  process_ = Process({"/proc/self/exe", "worker", folder, pod_uid}, theirs.get());
}

bool Worker::Begin(const std::string& command) {
  return send(channel_.get(), command.data(), command.size(), MSG_NOSIGNAL) > 0;
}

Answer Worker::Do(const std::string& command) {
  if (!Begin(command)) return {};
  return Await(command);
}

Answer Worker::Await(const std::string& command) {
  Answer answer;
  pollfd poller{.fd = channel_.get(), .events = POLLIN, .revents = 0};
  char text[128] = {};
  if (poll(&poller, 1, 2 * kPatienceMs) <= 0 ||
      recv(channel_.get(), text, sizeof text - 1, 0) <= 0) {
    ADD_FAILURE() << "a worker did not answer the command: " << command;
    return answer;
  }
  return ParseAnswer(text);
}

IsolatedWorker::IsolatedWorker(const std::string& folder) {
  const std::string view = folder + "-view";
  std::filesystem::create_directory(view);
  auto started = demo::Isolated::Start({"isolated-worker", view}, folder, view);
  if (started) {
    process_ = std::move(*started);
  } else {
    EXPECT_EQ(started.error().code(), Code::kDenied) << started.error().ToString();
  }
}

Answer IsolatedWorker::Do(const std::string& command) {
  const auto said = process_->Say(command);
  const auto heard = process_->Hear(Deadline::AfterMs(2 * kPatienceMs));
  if (!said || !heard) {
    ADD_FAILURE() << "an isolated worker did not answer the command: " << command;
    return {};
  }
  return ParseAnswer(heard->c_str());
}

}  // namespace gpushm::integration
