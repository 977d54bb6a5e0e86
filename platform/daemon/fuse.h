// Ending the connection of a FUSE file system whose daemon does not answer, so that the threads
// that wait for it, SIGKILL or not, go on: their calls fail with ECONNABORTED. The file system is
// of no more use afterwards.
//
// Threads: any.
#pragma once

#include <sys/types.h>

#include <istream>
#include <string>

#include "platform/base/status.h"

namespace gpushm {

// `device`: st_dev of a file of that file system. Needs CAP_SYS_ADMIN, to mount fusectl where
// nobody else sees it.
// kNotFound: no FUSE file system has that device, or it has ended already. kDenied: the capability
// is missing; or others may use it (OthersMount), and it is not ended.
Result<void> AbortFuse(dev_t device);

// Where the file system is mounted for others than one pod, as far as this process's mount
// namespace shows, which is the node's as far as the plugin sees it; empty: nowhere. The volumes of
// one pod alone, whose daemon may well run in that pod, are its own. `mountinfo`:
// proc_pid_mountinfo(5).
std::string OthersMount(dev_t device, std::istream& mountinfo);

}  // namespace gpushm
