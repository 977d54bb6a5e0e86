// The version of everything that is built from this tree.
#pragma once

namespace gpushm {

inline constexpr char kVersion[] = "1.0.0-rc.1";

}  // namespace gpushm
