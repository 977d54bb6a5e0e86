// Opens the file of `file:`, for reading. Containers may write the volume it lies in, and the
// broker sees volumes that they do not: no link leads it out of the one that the pod names.
//
// Links within the volume work, as ConfigMaps and Secrets have them; an absolute one begins at the
// volume's root, and ".." ends there (openat2, Linux 5.6). Where that call is not allowed or not
// there, paths without a link work, and one with a link is an error that says so.
//
// A volume may hang, and whoever opens a file in it: only the loader does.
//
// Threads: any.
#pragma once

#include <string>

#include "platform/base/status.h"
#include "platform/base/unique_fd.h"

namespace gpushm::broker {

// How a path is followed.
enum class Follow { kByKernel, kByHand };  // kByHand: as without openat2; for tests.

// `folder`: of the volume; empty: `path` is absolute, and its writer is who started the broker.
// Opening does not wait for a pipe's writer. kNotFound: it, or a folder of it, is not there (yet).
// kContended: a process has a lease on it. Both may pass.
// Any other error tells whose the file is, as the broker sees it, and who the broker is.
Result<UniqueFd> OpenFileOf(const std::string& folder, const std::string& path,
                            Follow follow = Follow::kByKernel);

}  // namespace gpushm::broker
