#include "plugin/kubelet/folder_watch.h"

#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <utility>

#include "platform/base/status.h"

namespace gpushm::plugin::kubelet {

FolderWatch::FolderWatch(std::string folder)
    : folder_(std::move(folder)),
      parent_(std::filesystem::path(Concat(folder_, "/"))
                  .lexically_normal()
                  .parent_path()
                  .parent_path()),
      inotify_(inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {}

void FolderWatch::Drain() {
  alignas(inotify_event) std::array<char, 16 * 1024> events;
  while (read(inotify_.get(), events.data(), events.size()) > 0) continue;
}

void FolderWatch::Refresh(const std::vector<std::string>& files) {
  if (!inotify_) return;
  // Adding the same file again returns the same watch; the kernel drops the watch of a removed
  // file.
  inotify_add_watch(inotify_.get(), parent_.c_str(), IN_CREATE | IN_MOVED_TO | IN_ONLYDIR);
  inotify_add_watch(inotify_.get(), folder_.c_str(),
                    IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE_SELF |
                        IN_MOVE_SELF | IN_ONLYDIR);
  for (const std::string& file : files)
    inotify_add_watch(inotify_.get(), file.c_str(), IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF);
}

}  // namespace gpushm::plugin::kubelet
