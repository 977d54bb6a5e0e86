// Wakes when something changes in the kubelet's folder: entries made, removed or renamed, the
// folder itself removed or made again, the files behind given names removed under another name.
//
// It only says "look again"; what changed is for stat to say. Events can be lost (a full queue, a
// node with no inotify instances left), so whoever uses it also looks from time to time.
//
// Threads: one at a time.
#pragma once

#include <string>
#include <vector>

#include "platform/base/unique_fd.h"

namespace gpushm::plugin::kubelet {

class FolderWatch {
 public:
  // Without inotify (EMFILE: 128 instances per user is a common limit) fd() is -1.
  explicit FolderWatch(std::string folder);

  // Readable when something changed.
  int fd() const { return inotify_.get(); }
  void Drain();
  // Watches again what may have become another file: the folder, its parent, these files.
  void Refresh(const std::vector<std::string>& files);

 private:
  std::string folder_;
  std::string parent_;
  UniqueFd inotify_;
};

}  // namespace gpushm::plugin::kubelet
