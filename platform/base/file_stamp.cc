#include "platform/base/file_stamp.h"

#include <poll.h>

#include <cerrno>

#include "platform/base/clock.h"

namespace gpushm {
namespace {

// A file that is written all the time is given up after so many ticks: it has another stamp when it
// has been read.
constexpr int kTicks = 3;

}  // namespace

Result<struct stat> StatBeforeReading(int fd, std::string_view name) {
  struct stat info{};
  for (int tick = 0;; ++tick) {
    if (fstat(fd, &info) != 0) return FailSystem(errno, Concat("stat ", name));
    const int64_t age_ns = UnixNs() - FileStamp::Of(info).changed_ns;
    // A time in the future is that of another machine's clock, which says nothing here.
    const bool young = age_ns >= 0 && age_ns < kStampTickNs;
    if (!young || !S_ISREG(info.st_mode) || tick == kTicks) return info;
    poll(nullptr, 0, static_cast<int>((kStampTickNs - age_ns) / 1'000'000) + 1);
  }
}

Status NotSettled(std::string_view name) {
  constexpr int64_t kSeconds = kSettleMs / 1000;
  return {
      Code::kBusy,
      Concat(name, " changed less than ", kSeconds,
             " s ago, and nothing says how long it is: it is loaded when it has not changed for ",
             kSeconds, " s"),
      "announce its size to save the wait: --bytes, or bytes: in the annotation"};
}

}  // namespace gpushm
