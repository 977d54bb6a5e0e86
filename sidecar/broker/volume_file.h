// Opens the file of `file:` for reading. Containers may write to its volume, and the broker sees
// volumes that they do not see. So no symbolic link may lead out of the volume that the pod names.
//
// Symbolic links within the volume work; ConfigMaps and Secrets use them. An absolute one starts at
// the volume's root, and ".." does not go above the root (openat2, Linux 5.6). If that call is not
// allowed or does not exist, paths without symbolic links work. A path with one is an error that
// says so.
//
// A volume may hang, and so may every process that opens a file in it. Only the loader does so.
//
// Threads: any.
#pragma once

#include <string>

#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm::broker {

// How symbolic links in a path are followed.
enum class Follow { kByKernel, kByHand };  // kByHand: as if openat2 did not exist; for tests.

// `folder` is the volume's. If it is empty, `path` is absolute and was given by the user who
// started the broker. Opening does not wait for a pipe's writer. Fails with kNotFound if the file
// or a folder of its path does not exist (yet), and with kContended if a process has a lease on it.
// Both may be temporary. Every other error shows the file's owner, as the broker sees it, and the
// broker's own user.
Result<UniqueFd> OpenFileOf(const std::string& folder, const std::string& path,
                            Follow follow = Follow::kByKernel);

}  // namespace gpushm::broker
