#include "plugin/keeper/keeper.h"

#include <sys/stat.h>

#include <cerrno>

#include "runtime/base/clock.h"
#include "runtime/base/name.h"
#include "runtime/daemon/log.h"

namespace gpushm::plugin {
namespace {

// Threads that what brokers sent can hold up before closing waits for them.
constexpr size_t kCloserThreads = 8;
// For closing what is kept at the end.
constexpr int64_t kStopMs = 1000;

}  // namespace

Result<std::unique_ptr<Keeper>> Keeper::Start(Options options) {
  struct stat folder{};
  if (stat(options.links_folder.c_str(), &folder) != 0) {
    return FailSystem(errno, Concat("stat ", options.links_folder),
                      "the folder of the links must be there and have mode 0700");
  }
  if (!S_ISDIR(folder.st_mode)) {
    return Fail(Code::kInvalidArgument, Concat(options.links_folder, " is no folder"));
  }
  if ((folder.st_mode & 077) != 0) {
    LogWarning("links-folder-is-open", {{"folder", options.links_folder}});
  }
  Result<std::unique_ptr<EventLoop>> loop = EventLoop::Create();
  if (!loop) return std::unexpected(loop.error());
  std::unique_ptr<Keeper> keeper(new Keeper(std::move(options), std::move(*loop)));
  keeper->thread_ = std::thread([loop = keeper->loop_.get()] { loop->Run(); });
  return keeper;
}

Keeper::Keeper(Options options, std::unique_ptr<EventLoop> loop)
    : options_(std::move(options)), closer_(kCloserThreads), loop_(std::move(loop)) {}

Keeper::~Keeper() {
  std::vector<std::shared_ptr<Closing>> closings;
  OnLoop([&] {
    for (const auto& [name, link] : links_) closings.push_back(link->closing());
    links_.clear();
  });
  loop_->Stop();
  thread_.join();
  const Deadline deadline = Deadline::AfterMs(kStopMs);
  for (const auto& closing : closings) {
    if (closing->Wait(deadline)) continue;
    LogWarning("closing-hangs", {{"descriptors", closing->pending()}});
    closer_.Abandon();
    return;
  }
}

LinkServer& Keeper::Link(const std::string& name) {
  std::unique_ptr<LinkServer>& link = links_[name];
  if (link == nullptr) {
    const std::string path =
        Concat(options_.links_folder, "/", name, "/", protocol::kLinkSocketName);
    // Told from the loop itself, so that whoever is told may call the keeper.
    const auto on_open = [this, name](bool open) {
      loop_->Post([this, name, open] {
        if (options_.on_link) options_.on_link(name, open);
        if (!open) Tidy();
      });
    };
    link = std::make_unique<LinkServer>(loop_.get(), &closer_, options_.settings, name, path,
                                        on_open, options_.on_ready);
  }
  return *link;
}

void Keeper::Tidy() {
  std::erase_if(links_, [this](const auto& item) {
    if (!item.second->finished()) return false;
    protocol::CounterValues none{};  // It counts no more, but has what it counted.
    item.second->Count(&none, &ended_counters_);
    return true;
  });
}

Result<void> Keeper::Open(const std::string& name, const LinkGrant& grant) {
  if (!IsDnsLabel(name)) {
    return Fail(Code::kInvalidArgument, Concat("\"", name, "\" is no allocation's name"));
  }
  const Deadline deadline = Deadline::AfterMs(options_.close_wait_ms);
  for (;;) {
    std::shared_ptr<Closing> closing;
    Result<void> opened = OnLoop([&] { return OpenHere(name, grant, &closing); });
    if (opened || opened.error().code() != Code::kBusy) return opened;
    // On the loop's thread nobody may wait.
    if (std::this_thread::get_id() == thread_.get_id() || !closing->Wait(deadline)) return opened;
  }
}

Result<void> Keeper::OpenHere(const std::string& name, const LinkGrant& grant,
                              std::shared_ptr<Closing>* closing) {
  LinkServer& link = Link(name);
  *closing = link.closing();
  const auto sick = sick_.find(grant.gpu);
  Result<void> opened = link.Open(grant, sick == sick_.end() ? GpuHealth{} : sick->second);
  Tidy();
  return opened;
}

void Keeper::Drop(const std::vector<std::string>& names) {
  OnLoop([&] {
    for (const std::string& name : names) {
      if (const auto found = links_.find(name); found != links_.end()) found->second->Revoke();
    }
    Tidy();
  });
}

void Keeper::Close(const std::string& name) {
  if (!IsDnsLabel(name)) return;
  OnLoop([&] {
    Link(name).Close();  // Also the socket that a former plugin left.
    Tidy();
  });
}

void Keeper::SetDevice(const std::string& gpu, bool lost, const std::string& reason) {
  OnLoop([&] {
    const GpuHealth health{.lost = lost, .reason = reason};
    if (lost) {
      sick_[gpu] = health;
    } else {
      sick_.erase(gpu);
    }
    for (const auto& [name, link] : links_) {
      if (link->granted() && link->grant().gpu == gpu) link->SetHealth(health);
    }
  });
}

std::vector<LinkView> Keeper::Look() {
  return OnLoop([&] {
    Tidy();
    std::vector<LinkView> views;
    views.reserve(links_.size());
    for (const auto& [name, link] : links_) views.push_back(link->Look());
    return views;
  });
}

protocol::CounterValues Keeper::Count() {
  return OnLoop([&] {
    protocol::CounterValues sum{};
    for (const auto& [name, link] : links_) link->Count(&sum, &ended_counters_);
    protocol::AddCounters(ended_counters_, &sum);
    return sum;
  });
}

std::map<std::string, uint64_t> Keeper::BufferBytes() {
  return OnLoop([&] {
    Tidy();
    std::map<std::string, uint64_t> bytes;
    for (const auto& [name, link] : links_) bytes[link->grant().gpu] += link->kept_bytes();
    return bytes;
  });
}

std::vector<ClientProcess> Keeper::Processes() {
  return OnLoop([&] {
    std::vector<ClientProcess> processes;
    for (const auto& [name, link] : links_) link->AddProcesses(&processes);
    return processes;
  });
}

}  // namespace gpushm::plugin
