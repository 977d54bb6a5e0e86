// A plain tar archive (POSIX.1-1988 ustar) of regular files, as text. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gpushm::ctl {

// The longest name without the format's field for a prefix.
inline constexpr size_t kTarNameBytes = 100;
// The largest size that fits into the format's eleven octal digits.
inline constexpr uint64_t kTarFileBytes = (uint64_t{1} << 33) - 1;

// The header of a file. `name` has at most kTarNameBytes, `size_bytes` is at most kTarFileBytes.
std::string TarHeader(std::string_view name, uint64_t size_bytes, int64_t unix_s);
// What follows a file's content, up to a whole block.
std::string TarPadding(uint64_t size_bytes);
// What ends an archive.
std::string TarEnd();

}  // namespace gpushm::ctl
