// Tells when the plugin's file has changed, and what of it takes effect.
//
// A ConfigMap's volume changes by renaming `..data`, a link to a folder, and an editor by renaming
// a new file over the old one: so the folder is watched, and what counts is that the text behind
// the path differs. Where the node has no inotify instance left, and for links to elsewhere, a look
// every kLookMs will do.
//
// Contract
//   (1) `on_change` only for a text that parses; after an error the configuration from before
//       stays. Each text is reported once, a mended one too where it brings back what was.
//   (2) Changes within kSettleMs are one; a folder that never rests is read every kLongestMs.
// Threads: all on the loop's.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "platform/base/unique_fd.h"
#include "platform/daemon/event_loop.h"
#include "plugin/config/plugin_config.h"

namespace gpushm::plugin {

class ConfigWatcher {
 public:
  // `taken.config`: what is to be used from now on. `taken.restart`: keys whose new values wait.
  using OnChange = std::function<void(const TakenOver& taken)>;
  using OnError = std::function<void(const Status&)>;

  static constexpr int64_t kSettleMs = 100;
  static constexpr int64_t kLongestMs = 1000;
  static constexpr int64_t kLookMs = 30'000;

  // `current`: what the program runs with, from the same path. The first look follows soon, so a
  // change since it was read is not missed. `loop` outlives it.
  ConfigWatcher(EventLoop& loop, std::string path, PluginConfig current, OnChange on_change,
                OnError on_error);
  ConfigWatcher(const ConfigWatcher&) = delete;
  ConfigWatcher& operator=(const ConfigWatcher&) = delete;
  ~ConfigWatcher();

  // Looks now (SIGHUP). Reports an error again even if it is the one from before.
  void Reload();

  const PluginConfig& current() const { return current_; }

 private:
  void Watch();
  void Unwatch();
  void Drain();
  void Touched();
  void LookLater();
  void Look(bool again);

  EventLoop& loop_;
  const std::string path_;
  const std::string folder_;
  PluginConfig current_;
  const OnChange on_change_;
  const OnError on_error_;
  std::optional<std::string> seen_;  // The text, or error, of the last look.
  UniqueFd inotify_;
  bool folder_watched_ = false;
  uint64_t settle_timer_ = 0;  // 0: none.
  uint64_t look_timer_ = 0;
  int64_t first_touch_ns_ = 0;
};

}  // namespace gpushm::plugin
