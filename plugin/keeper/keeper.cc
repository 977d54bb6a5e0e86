#include "plugin/keeper/keeper.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "platform/base/clock.h"
#include "platform/base/name.h"
#include "platform/daemon/fuse.h"
#include "platform/daemon/log.h"

namespace gpushm::plugin::keeper {
namespace {

// Time to close what is kept, at shutdown.
constexpr int64_t kStopMs = 1000;

}  // namespace

Result<std::unique_ptr<Keeper>> Keeper::Start(Options options) {
  struct stat folder{};
  if (stat(options.links_folder.c_str(), &folder) != 0) {
    return FailSystem(errno, Concat("stat ", options.links_folder),
                      "create the folder of the links, with mode 0700");
  }
  if (!S_ISDIR(folder.st_mode)) {
    return Fail(Code::kInvalidArgument, Concat(options.links_folder, " is not a folder"));
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
    : options_(std::move(options)),
      loop_(std::move(loop)),
      budget_{.limit_bytes = options_.statement_bytes} {}

Keeper::~Keeper() {
  std::map<std::string, std::shared_ptr<Closing>> closings;
  OnLoop([&] {
    for (const auto& [name, link] : links_) {
      closings[name] = link->closing();
      // A thread that waits for a FUSE daemon keeps this process from ending even with SIGKILL, and
      // so keeps a successor from starting. A wait for a socket ends with the process.
      link->AbortHeldUp(0, /*sockets=*/false);
    }
    links_.clear();
  });
  loop_->Stop();
  thread_.join();
  const Deadline deadline = Deadline::AfterMs(kStopMs);
  for (const auto& [name, closing] : closings) {
    if (closing->WaitForAll(deadline)) continue;
    LogWarning("closing-hangs", {{"allocation", name}, {"descriptors", closing->pending()}});
  }
}

LinkServer& Keeper::Link(const std::string& name) {
  std::unique_ptr<LinkServer>& link = links_[name];
  if (link == nullptr) {
    const std::string path =
        Concat(options_.links_folder, "/", name, "/", protocol::kLinkSocketName);
    // Reported from the loop itself, so that the callback may call the keeper.
    const auto on_open = [this, name](bool open) {
      loop_->Post([this, name, open] {
        if (options_.on_link) options_.on_link(name, open);
        if (!open) Tidy();
      });
    };
    link = std::make_unique<LinkServer>(
        loop_.get(), options_.settings, name, path,
        Concat(options_.others_folder, "/", name, "/", protocol::kSocketName), &budget_,
        LinkServer::Callbacks{.on_open = on_open,
                              .on_ready = options_.on_ready,
                              .make_room = [this, name] { return MakeRoom(name); },
                              .on_foreign = options_.on_foreign});
  }
  return *link;
}

// A link that was dropped before gets only half a share when there is no room. Otherwise it would
// return and push out the next largest link, and so on.
Result<void> Keeper::MakeRoom(const std::string& name) {
  const auto status = [this](uint64_t bytes, uint64_t share) {
    return Status(Code::kExhausted,
                  Concat("its statements take ", bytes,
                         " bytes of the plugin's memory; all pods together may take ",
                         budget_.limit_bytes, ", its share is ", share),
                  "reduce the pod's attachments and buffers, or raise the plugin's memory limit: "
                  "docs/reference/limits.md");
  };
  while (budget_.used_bytes > budget_.limit_bytes) {
    LinkServer* largest = nullptr;
    uint64_t links = 0;
    for (const auto& [other, link] : links_) {
      if (link->statement_bytes() == 0) continue;
      ++links;
      if (largest == nullptr || link->statement_bytes() > largest->statement_bytes()) {
        largest = link.get();
      }
    }
    LinkServer* const grown = links_.at(name).get();
    const uint64_t share = budget_.limit_bytes / std::max<uint64_t>(links, 1);
    const uint64_t allowed = grown->was_exhausted() ? share / 2 : share;
    if (largest == grown || grown->statement_bytes() > allowed) {
      return std::unexpected(status(grown->statement_bytes(), share));
    }
    largest->Evict(status(largest->statement_bytes(), share));
  }
  return {};
}

void Keeper::Tidy() {
  std::erase_if(links_, [this](const auto& item) {
    if (!item.second->finished()) return false;
    protocol::CounterValues none{};  // It counts no more, but its counts must not be lost.
    item.second->Count(&none, &ended_counters_);
    return true;
  });
}

Result<void> Keeper::Open(const std::string& name, const LinkTerms& terms) {
  if (!IsDnsLabel(name)) {
    return Fail(Code::kInvalidArgument,
                Concat("invalid allocation name (must be a DNS label): \"", name, "\""));
  }
  const Deadline deadline = Deadline::AfterMs(options_.close_wait_ms);
  for (;;) {
    std::shared_ptr<Closing> closing;
    Result<void> opened = OnLoop([&] { return OpenHere(name, terms, &closing); });
    if (opened || opened.error().code() != Code::kBusy) return opened;
    // Nobody may wait on the loop's thread.
    if (std::this_thread::get_id() == thread_.get_id() || !closing->WaitForProven(deadline))
      return opened;
  }
}

Result<void> Keeper::OpenHere(const std::string& name, const LinkTerms& terms,
                              std::shared_ptr<Closing>* closing) {
  LinkServer& link = Link(name);
  *closing = link.closing();
  Result<void> opened = link.Open(terms, sick_);
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
  const auto close = [this, name] {
    Link(name).Close();  // Also removes the socket that a former plugin left.
    Tidy();
  };
  if (std::this_thread::get_id() == thread_.get_id()) return close();
  // A later call finds the link closed in any case, because the thread runs calls in order.
  if (!OnLoopBy(Deadline::AfterMs(options_.close_wait_ms), [close] { return close(), true; })) {
    LogWarning("link-thread-hangs", {{"allocation", name}, {"waited_ms", options_.close_wait_ms}});
  }
}

void Keeper::HandOver(const Deadline& deadline, const std::function<bool()>& goes_on) {
  OnLoop([&] {
    for (const auto& [name, link] : links_) {
      const Result<uint64_t> handed = link->HandOver(deadline, goes_on);
      if (!handed) {
        LogWarning("not-handed-over",
                   {{"allocation", name}, {"reason", handed.error().ToString()}});
      } else if (*handed > 0) {
        LogInfo("handed-over", {{"allocation", name}, {"generations", *handed}});
      }
    }
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
      link->SetHealth(gpu, health);
    }
  });
}

bool Keeper::EachLink(const Deadline& deadline, const std::function<void(LinkView)>& visit) {
  const auto names = OnLoopBy(deadline, [this] {
    Tidy();
    std::vector<std::string> all;
    all.reserve(links_.size());
    for (const auto& [name, link] : links_) all.push_back(name);
    return all;
  });
  if (!names) return false;
  for (const std::string& name : *names) {
    auto view = OnLoopBy(deadline, [this, name]() -> std::optional<LinkView> {
      const auto found = links_.find(name);
      if (found == links_.end()) return std::nullopt;
      return found->second->Look();
    });
    if (!view) return false;
    if (*view) visit(std::move(**view));
  }
  return true;
}

std::vector<LinkView> Keeper::Look() {
  constexpr int64_t kPatienceMs = 60'000;
  std::vector<LinkView> views;
  EachLink(Deadline::AfterMs(kPatienceMs),
           [&](LinkView view) { views.push_back(std::move(view)); });
  return views;
}

std::optional<protocol::CounterValues> Keeper::Count(const Deadline& deadline) {
  return OnLoopBy(deadline, [this] {
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
    for (const auto& [name, link] : links_) {
      const std::vector<std::string>& gpus = link->terms().gpus;
      for (size_t i = 0; i < gpus.size(); ++i) bytes[gpus[i]] += link->kept_bytes(i);
    }
    return bytes;
  });
}

std::optional<size_t> Keeper::CountUsers(const std::string& name, const Deadline& deadline) {
  return OnLoopBy(deadline, [this, name] {
    const auto link = links_.find(name);
    return link == links_.end() ? size_t{0} : link->second->CountUsers();
  });
}

NodeProcesses Keeper::Processes() {
  return OnLoop([&] {
    NodeProcesses processes;
    for (const auto& [name, link] : links_) link->AddProcesses(&processes);
    return processes;
  });
}

}  // namespace gpushm::plugin::keeper
