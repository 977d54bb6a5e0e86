// Wakes when something changes in the kubelet's folder: entries are created, removed or renamed,
// the folder itself is removed or created again, or the files behind given names are removed under
// another name.
//
// It only says that something changed; use stat to find out what. Events can be lost (a full queue,
// a node without free inotify instances), so the user of this class also checks from time to time.
//
// Threads: one at a time.
#pragma once

#include <string>
#include <vector>

#include "platform/base/unique_fd.h"

namespace gpushm::plugin::kubelet {

class FolderWatch {
 public:
  // Without inotify, fd() is -1 (EMFILE: 128 instances per user is a common limit).
  explicit FolderWatch(std::string folder);

  // Readable when something changed.
  int fd() const { return inotify_.get(); }
  void Drain();
  // Renews the watches of what may have become another file: the folder, its parent, and these
  // files.
  void Refresh(const std::vector<std::string>& files);

 private:
  std::string folder_;
  std::string parent_;
  UniqueFd inotify_;
};

}  // namespace gpushm::plugin::kubelet
