// The parts of a support bundle: what each takes from its source. Each names what it takes, so what
// nobody thought of is left out. Pure, except the functions that begin with Read.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "runtime/ctl/bundle.h"
#include "runtime/ctl/connection.h"

namespace gpushm::ctl {

// The variables whose values a bundle may have.
bool IsPublicVariable(std::string_view name);
// `variables`: "NAME=VALUE" each, as in environ(7).
std::string EnvironmentJson(const std::vector<std::string>& variables);

// The mounts that gpushm, the driver and CUDA need, from the text of /proc/PID/mountinfo: without
// their sources and the options of their file systems, which can name servers and users.
std::string MountsJson(std::string_view mountinfo);

// All holders, in the broker's order.
Bundle::Part HoldersJson(const std::vector<gpushm_holder>& holders);

// A configuration file without its comments, and without the values of keys that are named like
// secrets.
std::string ConfigurationText(std::string_view yaml);

// The lines of a page of metrics that are gpushm's own.
std::string MetricsText(std::string_view page);

// What a CDI spec of gpushm's says, with the values of public variables only. kCorrupt: it is no
// JSON object.
Result<std::string> CdiSpecJson(std::string_view spec);

// Versions of gpushm, driver, kernel and distribution. `wait_ms`: for the process that loads the
// container's library.
std::string ReadVersions(int64_t wait_ms);
// Who this process is, what limits it, and what it sees of the driver.
std::string ReadSystem();
// The specs of gpushm's in `folder`.
Result<Bundle::Part> ReadCdiSpecs(const std::string& folder);
// The file behind links, as a ConfigMap's volume has them.
Result<Bundle::Part> ReadConfiguration(const std::string& path);

}  // namespace gpushm::ctl
