// Sockets that have a name in a folder which somebody else (the kubelet) empties at will.
//
// Invariants:
//   1. A name appears only with a socket behind it that already listens (bind elsewhere, rename).
//   2. A socket takes its name away only while the name still leads to it: never a successor's.
//
// Threads: each object by one thread at a time; functions from any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm::plugin::kubelet {

// Which file it is, not only what it is called. Numbers of inodes are used again at once (ext4), so
// the time of birth belongs to it.
struct FileId {
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t born_ns = 0;  // Where the file system does not know: its last change.
  friend bool operator==(const FileId&, const FileId&) = default;
};

// None: nothing is there, or it cannot be looked at.
std::optional<FileId> Identify(const std::string& path);

// Whether a process accepts connections there; a socket that a dead one left does not.
bool SomeoneAccepts(const std::string& path);

class ListeningSocket {
 public:
  // kInvalidArgument: `path` is too long for a socket.
  static Result<void> CheckPath(const std::string& path);
  // Listens at `path`, in place of what may be there.
  // kInvalidArgument as CheckPath. kSystem: with errno.
  static Result<ListeningSocket> Bind(const std::string& path);

  ListeningSocket(ListeningSocket&&) noexcept = default;
  ListeningSocket& operator=(ListeningSocket&&) = delete;
  ~ListeningSocket();

  int fd() const { return fd_.get(); }
  // Whether the path still leads here.
  bool InPlace() const { return Identify(path_) == id_; }
  // A waiting connection, non-blocking; invalid if there is none.
  UniqueFd Accept() const;
  // Leaves the name behind, as a killed process does.
  void Abandon() { path_.clear(); }

 private:
  ListeningSocket(UniqueFd fd, std::string path, FileId id)
      : fd_(std::move(fd)), path_(std::move(path)), id_(id) {}

  UniqueFd fd_;
  std::string path_;
  FileId id_;
};

}  // namespace gpushm::plugin::kubelet
