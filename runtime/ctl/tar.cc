#include "runtime/ctl/tar.h"

#include <algorithm>
#include <cassert>
#include <cstdio>
#include <numeric>

namespace gpushm::ctl {
namespace {

constexpr size_t kBlockBytes = 512;

// Places in a header: pax(1) of POSIX, "ustar Interchange Format". Numbers are octal digits with a
// NUL behind them.
constexpr size_t kMode = 100;
constexpr size_t kUid = 108;
constexpr size_t kGid = 116;
constexpr size_t kSize = 124;
constexpr size_t kTime = 136;
constexpr size_t kChecksum = 148;
constexpr size_t kType = 156;
constexpr size_t kMagic = 257;

void PutOctal(std::string* header, size_t at, int digits, uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "%0*llo", digits, static_cast<unsigned long long>(value));
  header->replace(at, static_cast<size_t>(digits), text);
}

}  // namespace

std::string TarHeader(std::string_view name, uint64_t size_bytes, int64_t unix_s) {
  assert(name.size() <= kTarNameBytes && size_bytes <= kTarFileBytes);
  std::string header(kBlockBytes, '\0');
  header.replace(0, name.size(), name);
  PutOctal(&header, kMode, 7, 0644);
  PutOctal(&header, kUid, 7, 0);
  PutOctal(&header, kGid, 7, 0);
  PutOctal(&header, kSize, 11, size_bytes);
  PutOctal(&header, kTime, 11, static_cast<uint64_t>(std::max<int64_t>(unix_s, 0)));
  header[kType] = '0';
  header.replace(kMagic, 8, std::string_view("ustar\00000", 8));
  // The checksum counts its own field as spaces.
  header.replace(kChecksum, 8, 8, ' ');
  const uint64_t sum = std::accumulate(
      header.begin(), header.end(), uint64_t{0},
      [](uint64_t so_far, char c) { return so_far + static_cast<unsigned char>(c); });
  PutOctal(&header, kChecksum, 6, sum);
  header[kChecksum + 6] = '\0';
  return header;
}

std::string TarPadding(uint64_t size_bytes) {
  return std::string((kBlockBytes - size_bytes % kBlockBytes) % kBlockBytes, '\0');
}

std::string TarEnd() { return std::string(2 * kBlockBytes, '\0'); }

}  // namespace gpushm::ctl
