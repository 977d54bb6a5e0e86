// The system calls with which this folder changes files, behind one interface. A test can make them
// fail, or kill the process at each of them.
//
// Threads: any; there is no state.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm {

class Files {
 public:
  virtual ~Files() = default;

  // Creates a file that only its owner can read until SetMode. Follows no link.
  virtual Result<UniqueFd> Create(const std::string& path);
  virtual Result<void> Append(int fd, std::string_view bytes);
  // Independent of the umask.
  virtual Result<void> SetMode(int fd, mode_t mode);
  virtual Result<void> Sync(int fd);
  virtual Result<void> Rename(const std::string& from, const std::string& to);
  // kNotFound: the file does not exist.
  virtual Result<void> Unlink(const std::string& path);
  // kAlreadyExists: the name is taken.
  virtual Result<void> MakeFolder(const std::string& path);
  virtual Result<void> RemoveFolder(const std::string& path);
};

Files& SystemFiles();

enum class Durability {
  kProcess,  // Survives the death of any process.
  kPower,    // Also survives a loss of power.
};

// Gives `path` that content and mode in one step: readers see the old file or the new one. A
// process that has the old file open or mounted keeps it.
Result<void> ReplaceFile(Files& files, const std::string& path, std::string_view content,
                         mode_t mode, Durability durability);

// Removes what ReplaceFile left behind when its process was killed, for files whose names begin
// with `prefix`.
Result<void> SweepTemporaries(Files& files, const std::string& folder, std::string_view prefix);

// The names in a folder, sorted, without . and ..
Result<std::vector<std::string>> ListFolder(const std::string& folder);

}  // namespace gpushm
