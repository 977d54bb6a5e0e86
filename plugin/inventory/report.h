// What the plugin would advertise, for people and for programs.
#pragma once

#include <string>

#include "plugin/inventory/inventory.h"

namespace gpushm::plugin::inventory {

// A table, with a line for each device and one for each resource.
std::string Table(const Advertisement& advertisement, const Rules& rules);

// One JSON object:
//   {"devices": [{"uuid", "parent_uuid", "name", "index", "minor", "total_bytes", "nvlink",
//     "units"}],
//    "unit_bytes", "reserve_bytes", "attach_tokens",
//    "resources": {"gpushm.io/memory": ids, "gpushm.io/attach": ids}}
// parent_uuid is "" unless the device is a MIG instance; ids are numbers of IDs.
std::string Json(const Advertisement& advertisement, const Rules& rules);

}  // namespace gpushm::plugin::inventory
