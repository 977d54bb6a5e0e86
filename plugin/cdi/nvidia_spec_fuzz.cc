// For any text, ParseNvidiaSpec returns a spec or a Status, and an accepted spec can be written.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "plugin/cdi/nvidia_spec.h"
#include "plugin/cdi/spec_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gpushm::plugin::cdi;
  constexpr size_t kEnough = size_t{16} << 10;  // Far below kMaxSpecBytes.
  if (size > kEnough) return 0;
  const auto spec = ParseNvidiaSpec(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!spec) return 0;
  if (!SharedSpecText(spec->common)) std::abort();
  for (const auto& [name, edits] : spec->devices) {
    if (!SharedSpecText(edits)) std::abort();
  }
  return 0;
}
