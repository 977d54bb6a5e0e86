#include "plugin/config/config_watch.h"

#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "platform/base/clock.h"

namespace gpushm::plugin {
namespace {

constexpr uint32_t kFolderEvents = IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM | IN_CLOSE_WRITE |
                                   IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR;

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

ConfigWatcher::ConfigWatcher(EventLoop& loop, std::string path, PluginConfig current,
                             OnChange on_change, OnError on_error)
    : loop_(loop),
      path_(std::move(path)),
      folder_(FolderOf(path_)),
      current_(std::move(current)),
      on_change_(std::move(on_change)),
      on_error_(std::move(on_error)) {
  Watch();
  Touched();
}

ConfigWatcher::~ConfigWatcher() {
  Unwatch();
  loop_.Cancel(settle_timer_);
  loop_.Cancel(look_timer_);
}

void ConfigWatcher::Watch() {
  if (!inotify_) {
    inotify_.Reset(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    if (!inotify_) return;
    if (!loop_.Watch(inotify_.get(), EPOLLIN, [this](uint32_t) { Drain(); })) {
      inotify_.Reset();
      return;
    }
  }
  // Adding the watch again returns the same one, unless another folder has the name now.
  folder_watched_ = inotify_add_watch(inotify_.get(), folder_.c_str(), kFolderEvents) >= 0;
}

void ConfigWatcher::Unwatch() {
  if (inotify_) loop_.Unwatch(inotify_.get());
  inotify_.Reset();
}

void ConfigWatcher::Drain() {
  alignas(inotify_event) std::array<char, 4096> events;
  while (read(inotify_.get(), events.data(), events.size()) > 0) {
  }
  Touched();
}

void ConfigWatcher::Touched() {
  const int64_t now_ns = MonotonicNs();
  if (settle_timer_ == 0) {
    first_touch_ns_ = now_ns;
  } else {
    loop_.Cancel(settle_timer_);
  }
  const int64_t left_ms = kLongestMs - (now_ns - first_touch_ns_) / 1'000'000;
  settle_timer_ = loop_.After(std::clamp<int64_t>(left_ms, 0, kSettleMs), [this] {
    settle_timer_ = 0;
    Look(false);
  });
}

void ConfigWatcher::LookLater() {
  loop_.Cancel(look_timer_);
  // A folder that was renamed or removed is watched under its name again once it is back.
  look_timer_ = loop_.After(folder_watched_ ? kLookMs : kLongestMs, [this] { Look(false); });
}

void ConfigWatcher::Reload() { Look(true); }

void ConfigWatcher::Look(bool again) {
  Watch();
  LookLater();
  const Result<std::string> text = ReadConfigText(path_);
  std::string seen = text ? *text : text.error().ToString();
  const bool first = !seen_;
  const bool differs = first || *seen_ != seen;
  if (!again && !differs) return;
  seen_ = std::move(seen);
  if (!text) return on_error_(text.error());
  const Result<PluginConfig> next = ParsePluginConfig(*text, path_);
  if (!next) return on_error_(next.error());
  TakenOver taken = TakeOver(current_, *next);
  const bool same = taken.config == current_ && taken.restart.empty();
  if (same && (first || !differs)) return;
  current_ = taken.config;
  on_change_(taken);
}

}  // namespace gpushm::plugin
