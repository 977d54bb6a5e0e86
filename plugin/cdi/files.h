// The system calls by which this folder changes files, behind one interface, so that a test can
// fail them or kill the process at each of them.
//
// Threads: any; nothing is kept.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm::plugin {

class Files {
 public:
  virtual ~Files() = default;

  // A new file that only its owner can read until SetMode. Follows no link.
  virtual Result<UniqueFd> Create(const std::string& path);
  virtual Result<void> Append(int fd, std::string_view bytes);
  // Whatever the umask is.
  virtual Result<void> SetMode(int fd, mode_t mode);
  virtual Result<void> Sync(int fd);
  virtual Result<void> Rename(const std::string& from, const std::string& to);
  // kNotFound: there is none.
  virtual Result<void> Unlink(const std::string& path);
  // kAlreadyExists: something has that name.
  virtual Result<void> MakeFolder(const std::string& path);
  virtual Result<void> RemoveFolder(const std::string& path);
};

Files& SystemFiles();

enum class Durability {
  kProcess,  // Survives the death of every process.
  kPower,    // And the loss of power.
};

// Gives `path` that content and mode in one step: readers see the old file or the new one. Whoever
// has the old one open or mounted keeps it.
Result<void> ReplaceFile(Files& files, const std::string& path, std::string_view content,
                         mode_t mode, Durability durability);

// Removes what ReplaceFile left when its process was killed, of files whose names begin with
// `prefix`.
Result<void> SweepTemporaries(Files& files, const std::string& folder, std::string_view prefix);

// Names in a folder, sorted, without . and ..
Result<std::vector<std::string>> ListFolder(const std::string& folder);

// The whole of a regular file. Follows no link and waits for no pipe's writer. kNotFound;
// kCorrupt: it is no regular file, or longer than max_bytes.
Result<std::string> ReadWhole(const std::string& path, size_t max_bytes);

}  // namespace gpushm::plugin
