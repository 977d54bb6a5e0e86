// process_* metrics, as every Prometheus client library exports them.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "platform/base/clock.h"
#include "plugin/metrics/collector.h"

namespace gpushm::plugin::metrics {
namespace {

// Field n of /proc/self/stat, numbered as in proc(5); from field 3 on.
struct Stat {
  uint64_t user_ticks = 0;
  uint64_t system_ticks = 0;
  uint64_t start_ticks = 0;
  uint64_t virtual_bytes = 0;
  uint64_t resident_pages = 0;
};

bool ReadStat(Stat* stat) {
  std::ifstream file("/proc/self/stat");
  std::string text(std::istreambuf_iterator<char>(file), {});
  // The name before it may contain spaces and parentheses.
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return false;
  std::istringstream fields(text.substr(end + 1));
  std::string field;
  for (int number = 3; fields >> field; ++number) {
    const uint64_t value = std::strtoull(field.c_str(), nullptr, 10);
    if (number == 14) stat->user_ticks = value;
    if (number == 15) stat->system_ticks = value;
    if (number == 22) stat->start_ticks = value;
    if (number == 23) stat->virtual_bytes = value;
    if (number == 24) stat->resident_pages = value;
  }
  return stat->resident_pages != 0;
}

// Read only once: it does not change, but the wall clock may.
double StartSeconds(uint64_t start_ticks, double ticks_per_second) {
  timespec since_boot{};
  clock_gettime(CLOCK_BOOTTIME, &since_boot);
  const double boot =
      static_cast<double>(since_boot.tv_sec) + static_cast<double>(since_boot.tv_nsec) * 1e-9;
  return static_cast<double>(UnixNs()) * 1e-9 - boot +
         static_cast<double>(start_ticks) / ticks_per_second;
}

uint64_t OpenDescriptors() {
  std::error_code error;
  const std::filesystem::directory_iterator folder("/proc/self/fd", error);
  if (error) return 0;
  // Minus the one descriptor that this function has open.
  return static_cast<uint64_t>(std::distance(begin(folder), end(folder))) - 1;
}

}  // namespace

bool WriteProcess(Exposition* out) {
  Stat stat;
  if (!ReadStat(&stat)) return false;
  const auto ticks_per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  static const double start_seconds = StartSeconds(stat.start_ticks, ticks_per_second);
  out->Add(Metric::kProcessCpu, {},
           static_cast<double>(stat.user_ticks + stat.system_ticks) / ticks_per_second);
  out->Add(Metric::kProcessResident, {},
           stat.resident_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
  out->Add(Metric::kProcessVirtual, {}, stat.virtual_bytes);
  out->Add(Metric::kProcessStart, {}, start_seconds);
  out->Add(Metric::kProcessFds, {}, OpenDescriptors());
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    out->Add(Metric::kProcessMaxFds, {}, uint64_t{limit.rlim_cur});
  }
  return true;
}

}  // namespace gpushm::plugin::metrics
