// Reports when the plugin's file has changed, and which changes take effect.
//
// A ConfigMap's volume changes by a rename of `..data`, a link to a folder, and an editor renames a
// new file over the old one. So this class watches the folder, and compares the text behind the
// path. If the node has no free inotify instance, or a link leads elsewhere, a check every kLookMs
// is enough.
//
// Contract
//   (1) `on_change` is called only for a text that parses; after an error the former configuration
//       stays. Each text is reported once. A corrected file is reported too, even if it restores
//       what was there before.
//   (2) Changes within kSettleMs count as one. A folder that changes all the time is read every
//       kLongestMs.
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
  // `taken.config`: what to use from now on. `taken.restart`: keys whose new values need a restart.
  using OnChange = std::function<void(const TakenOver& taken)>;
  using OnError = std::function<void(const Status&)>;

  static constexpr int64_t kSettleMs = 100;
  static constexpr int64_t kLongestMs = 1000;
  static constexpr int64_t kLookMs = 30'000;

  // `current`: the configuration that the program runs with, read from the same path. The first
  // check follows soon, so a change since that read is not missed. `loop` must outlive this object.
  ConfigWatcher(EventLoop& loop, std::string path, PluginConfig current, OnChange on_change,
                OnError on_error);
  ConfigWatcher(const ConfigWatcher&) = delete;
  ConfigWatcher& operator=(const ConfigWatcher&) = delete;
  ~ConfigWatcher();

  // Checks now (SIGHUP). Reports an error again even if it has not changed.
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
  std::optional<std::string> seen_;  // The text, or error, of the last check.
  UniqueFd inotify_;
  bool folder_watched_ = false;
  uint64_t settle_timer_ = 0;  // 0: not set.
  uint64_t look_timer_ = 0;
  int64_t first_touch_ns_ = 0;
};

}  // namespace gpushm::plugin
