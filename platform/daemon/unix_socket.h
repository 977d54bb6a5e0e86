// Sockets with a name in a folder that somebody else (the kubelet) may empty at any time.
//
// Invariants:
//   1. A name appears only with a socket behind it that already listens (bind elsewhere, then
//      rename).
//   2. A socket removes its name only while the name still leads to it: never a successor's.
//
// Threads: each object by one thread at a time; functions from any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm {

// Identifies a file independent of its name. File systems reuse inode numbers immediately (ext4),
// so the time of birth is part of the identity.
struct FileId {
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t born_ns = 0;  // Time of the last change if the file system does not record it.
  friend bool operator==(const FileId&, const FileId&) = default;
};

// Nothing: there is no such file, or it cannot be read.
std::optional<FileId> Identify(const std::string& path);

// Whether a process accepts connections there. A socket that a dead process left does not.
bool SomeoneAccepts(const std::string& path);

class ListeningSocket {
 public:
  // kInvalidArgument: `path` is too long for a socket.
  static Result<void> CheckPath(const std::string& path);
  // Listens at `path`, and replaces what may be there.
  // kInvalidArgument as for CheckPath. kSystem: with errno.
  static Result<ListeningSocket> Bind(const std::string& path);

  ListeningSocket(ListeningSocket&&) noexcept = default;
  ListeningSocket& operator=(ListeningSocket&&) = delete;
  ~ListeningSocket();

  int fd() const { return fd_.get(); }
  // Whether the path still leads to this socket.
  bool InPlace() const { return Identify(path_) == id_; }
  // A waiting connection, non-blocking; invalid if there is none.
  UniqueFd Accept() const;
  // Leaves the name in the folder, as a killed process does.
  void Abandon() { path_.clear(); }

 private:
  ListeningSocket(UniqueFd fd, std::string path, FileId id)
      : fd_(std::move(fd)), path_(std::move(path)), id_(id) {}

  UniqueFd fd_;
  std::string path_;
  FileId id_;
};

}  // namespace gpushm
