#include "tests/integration/barrier_commands.h"

#include <cstdlib>
#include <string>
#include <string_view>

namespace gpushm::integration {
gpushm_barrier_info BarrierCommands::Info() const {
  gpushm_barrier_info info;
  GPUSHM_INIT(&info);
  gpushm_barrier_get_info(barrier_, &info);
  return info;
}

Answer BarrierCommands::Open(std::istringstream& in) {
  std::string name;
  gpushm_barrier_options options;
  GPUSHM_INIT(&options);
  in >> name >> options.participants >> options.timeout_ms;
  const auto status = gpushm_barrier_open(client_, name.c_str(), &options, &barrier_);
  return Told(status, status == GPUSHM_OK ? static_cast<int64_t>(Info().generation) : 0);
}

Answer BarrierCommands::Wait(int64_t timeout_ms) {
  const auto status = gpushm_barrier_wait(barrier_, timeout_ms);
  if (status != GPUSHM_TIMEOUT) return Told(status, static_cast<int64_t>(Info().point));
  constexpr std::string_view kBefore = "(client ";
  const std::string_view text = gpushm_last_error()->text;
  const size_t at = text.find(kBefore);
  return Told(status, at == std::string_view::npos ? -1 : std::atoi(&text[at + kBefore.size()]));
}

Answer BarrierCommands::Pump() {
  for (int64_t passed = 0;; ++passed) {
    const auto status = gpushm_barrier_wait(barrier_, kPatienceMs);
    if (status != GPUSHM_OK) return Told(status, passed);
  }
}

Answer BarrierCommands::Do(std::istringstream& in) {
  std::string verb;
  in >> verb;
  if (verb == "open") return Open(in);
  if (verb == "pump") return Pump();
  if (verb == "check") return Told(gpushm_barrier_check(barrier_));
  if (verb == "close") return Told(gpushm_barrier_close(barrier_));
  if (verb == "joined") return {0, Info().joined};
  int number = 0;
  in >> number;
  if (verb == "wait") return Wait(number);
  return Told(gpushm_barrier_wait_on_stream(barrier_, streams_.StreamOf(number)));
}

}  // namespace gpushm::integration
