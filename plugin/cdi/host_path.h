// Accesses the host's file system from a container that sees it below a folder.
// Threads: any; the host's files may change at any time.
#pragma once

#include <optional>
#include <string>

namespace gpushm::plugin::cdi {

// The path below `root` (empty: /) to which `path` leads, if links are followed as if `root` were
// the root folder. The result has no links and no dots. Nothing: it leads to no file, or there is a
// cycle.
std::optional<std::string> ResolveIn(const std::string& root, const std::string& path);

bool Exists(const std::string& path);

}  // namespace gpushm::plugin::cdi
