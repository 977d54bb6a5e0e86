// Goal: no file crashes the broker. A state that was read is written as one that reads the same.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "contract/status/mps_state.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gpushm::status;
  const auto state = MpsStateFromJson({reinterpret_cast<const char*>(data), size});
  if (!state) return 0;
  state->IsReady();
  const std::string json = ToJson(*state);
  const auto again = MpsStateFromJson(json);
  if (!again || ToJson(*again) != json) std::abort();
  return 0;
}
