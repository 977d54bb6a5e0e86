// The version of everything that is built from this tree.
#pragma once

namespace gpushm {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace gpushm
