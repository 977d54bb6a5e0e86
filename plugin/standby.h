// A plugin that stands by: it has shown that it could serve the node, and waits for the one that
// does to end. An update by a DaemonSet with maxSurge starts the next plugin beside the running
// one and asks that one to end when the next is Ready; the next one registers before the other has
// ended (docs/design/plugin.md).
//
// Two locks in the state folder say who is who: `.plugin` is the serving one's, `.standby` that of
// the one that waits. What the one that ends keeps of brokers it hands to the other (Keeper::
// HandOver).
//
// Threads: any; StandBy from one.
#pragma once

#include <optional>
#include <string>

#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "plugin/daemon.h"

namespace gpushm::plugin {

// Returns with the locks when the serving plugin has let go; where none has the lock at once, or
// some seconds later if one that ends is still at its sockets. Without the locks when a signal
// other than SIGHUP came on `signals` (a signalfd). kAlreadyExists: another one stands by. Else as
// Daemon::Start: it could not serve. While it waits it serves the probes of `options`: /readyz is
// 200.
Result<std::optional<NodeLocks>> StandBy(const DaemonOptions& options, int signals);

}  // namespace gpushm::plugin
