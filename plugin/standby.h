// A standby plugin has shown that it could serve the node, and waits for the serving plugin to end.
// In an update, a DaemonSet with maxSurge starts the next plugin in parallel with the running one,
// and ends the running one when the next is Ready. The next one registers before the running one
// has ended (docs/design/plugin.md).
//
// Two locks in the state folder show the roles: the serving plugin holds `.plugin`, the standby
// plugin holds `.standby`. The plugin that ends hands over its kept state (Keeper::HandOver).
//
// Threads: any; StandBy from one.
#pragma once

#include <optional>
#include <string>

#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "plugin/daemon.h"

namespace gpushm::plugin {

// Returns with the locks when the serving plugin has released its own. If no plugin holds the lock,
// it returns immediately, or some seconds later if a plugin that is ending still has its sockets.
// Returns without the locks after a signal on `signals` (a signalfd).
// kAlreadyExists: another plugin stands by. Otherwise as Daemon::Start: it could not serve. While
// it waits, it serves the probes of `options`, and /readyz is 200.
Result<std::optional<NodeLocks>> StandBy(const DaemonOptions& options, int signals);

}  // namespace gpushm::plugin
