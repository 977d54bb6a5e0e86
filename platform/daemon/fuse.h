// Ends the connection of a FUSE file system whose daemon does not answer. The threads that wait for
// it, with or without SIGKILL, then continue: their calls fail with ECONNABORTED. The file system
// is unusable afterwards.
//
// Threads: any.
#pragma once

#include <sys/types.h>

#include <istream>
#include <string>

#include "platform/base/status.h"

namespace gpushm {

// `device`: st_dev of a file of that file system. Needs CAP_SYS_ADMIN, to mount fusectl where no
// other process sees it. kNotFound: no FUSE file system has that device, or it has ended already.
// kDenied: the capability is missing, or others may use the file system (OthersMount), so that it
// is not ended.
Result<void> AbortFuse(dev_t device);

// Where the file system is mounted for users other than one pod; empty: nowhere. The check sees
// this process's mount namespace, which is the node's as far as the plugin can see it. Volumes that
// only one pod uses do not count, because their daemon may well run in that pod. `mountinfo`:
// proc_pid_mountinfo(5).
std::string OthersMount(dev_t device, std::istream& mountinfo);

}  // namespace gpushm
