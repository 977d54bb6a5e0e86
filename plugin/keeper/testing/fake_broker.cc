#include "plugin/keeper/testing/fake_broker.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "contract/registry/writer.h"
#include "plugin/keeper/testing/counter_segment.h"

namespace gpushm::plugin::keeper::testing {

bool Eventually(const std::function<bool()>& holds) {
  const Deadline deadline = Deadline::AfterMs(kSoonMs);
  while (!holds()) {
    if (deadline.Passed()) return false;
    poll(nullptr, 0, 2);
  }
  return true;
}

LinksFolder::LinksFolder() {
  std::string path = (std::filesystem::temp_directory_path() / "gpushm-links-XXXXXX").string();
  if (mkdtemp(path.data()) != nullptr) path_ = path;
}

LinksFolder::~LinksFolder() { std::filesystem::remove_all(path_); }

void LinksFolder::Add(const std::string& name) const {
  std::filesystem::create_directory(path_ + "/" + name);
  chmod((path_ + "/" + name).c_str(), 0755);
}

std::string LinksFolder::Socket(const std::string& name) const {
  return path_ + "/" + name + "/" + protocol::kLinkSocketName;
}

FakeBroker::FakeBroker(const std::string& socket_path) {
  Eventually([&] {
    Result<UniqueFd> socket = protocol::Connect(socket_path);
    if (!socket) return false;
    socket_ = std::move(*socket);
    return true;
  });
}

Result<void> FakeBroker::Say(const Body& body, int descriptor) {
  return std::visit([&](const auto& stated) { return Say(KindOf(body), stated, descriptor); },
                    body);
}

Result<void> FakeBroker::Hello(bool want_kept, uint64_t epoch) {
  return Say(protocol::LinkKind::kHello,
             protocol::LinkHello{.min_version = protocol::kLinkMinVersion,
                                 .max_version = protocol::kLinkMaxVersion,
                                 .want_kept = want_kept ? 1u : 0u,
                                 .epoch = epoch,
                                 .program = protocol::ToNameField("fake broker")});
}

Result<protocol::LinkWelcome> FakeBroker::Greet(bool want_kept, uint64_t epoch) {
  if (auto said = Hello(want_kept, epoch); !said) return std::unexpected(said.error());
  return Expect<protocol::LinkWelcome>(protocol::LinkKind::kWelcome);
}

Result<std::vector<std::string>> FakeBroker::TakeKept() {
  std::vector<std::string> lines;
  for (;;) {
    Result<protocol::Message> message = Next();
    if (!message) return std::unexpected(message.error());
    const auto header = protocol::ParseLinkHeader(message->span());
    if (!header) return std::unexpected(header.error());
    if (header->kind == static_cast<uint16_t>(protocol::LinkKind::kEnd)) return lines;
    const int fd = message->descriptors.empty() ? -1 : message->descriptors[0].get();
    lines.push_back(Line(message->span(), TagOf(fd)));
  }
}

Result<void> FakeBroker::Registry(uint64_t epoch) {
  auto writer = registry::RegistryWriter::Create(16);
  if (!writer) return std::unexpected(writer.error());
  return Say(protocol::LinkKind::kRegistry, protocol::LinkRegistry{epoch}, writer->fd());
}

Result<void> FakeBroker::Counters(const std::vector<std::string>& containers) {
  const CounterSegment segment(containers);
  return Say(protocol::LinkKind::kCounters, protocol::LinkCounters{protocol::kCountersVersion, 0},
             segment.fd().get());
}

Result<protocol::Message> FakeBroker::Next(int64_t wait_ms) {
  protocol::Message message;
  auto received = protocol::Receive(socket_.get(), &message, Deadline::AfterMs(wait_ms));
  if (!received) return std::unexpected(received.error());
  return message;
}

bool FakeBroker::WaitForEnd() {
  for (;;) {
    const Result<protocol::Message> message = Next();
    if (!message) return message.error().code() == Code::kUnavailable;
  }
}

Process::Process(const std::function<void()>& body) {
  pid_ = fork();
  if (pid_ != 0) return;
  body();
  raise(SIGKILL);
}

bool Process::Reap(bool wait) {
  if (pid_ < 0) return true;
  siginfo_t info{};
  if (wait) {
    const Deadline deadline = Deadline::AfterMs(kSoonMs);
    while (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG) != 0 ||
           info.si_pid == 0) {
      if (deadline.Passed()) return false;
      poll(nullptr, 0, 1);
    }
  } else {
    waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED);
  }
  pid_ = -1;
  status_ = info.si_code == CLD_EXITED ? info.si_status : -1;
  return true;
}

void Process::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  Reap(false);
}

bool Process::WaitForEnd() { return Reap(true); }

void WaitToBeKilled() {
  for (;;) pause();
}

void LinkEvents::Note(const std::string& name, bool open) {
  const std::lock_guard lock(mutex_);
  ++counts_[{name, open}];
  changed_.notify_all();
}

bool LinkEvents::Wait(const std::string& name, bool open, int count) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(kSoonMs),
                           [&] { return counts_[{name, open}] >= count; });
}

int LinkEvents::Count(const std::string& name, bool open) {
  const std::lock_guard lock(mutex_);
  return counts_[{name, open}];
}

}  // namespace gpushm::plugin::keeper::testing
