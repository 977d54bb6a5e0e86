// Goal: no document crashes gpushmctl. A document that was read is written as one that reads the
// same.
#include "contract/status/status.h"

#include <cstdint>
#include <cstdlib>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gpushm::status;
  const auto node = FromJson({reinterpret_cast<const char*>(data), size});
  if (!node) return 0;
  const std::string json = ToJson(*node);
  const auto again = FromJson(json);
  if (!again || ToJson(*again) != json) std::abort();
  return 0;
}
