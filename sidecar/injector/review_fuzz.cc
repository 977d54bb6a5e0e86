// Sends any bytes to both endpoints. Nothing crashes, and every answer is JSON.
#include <cstdint>
#include <string_view>

#include "platform/base/status.h"
#include "sidecar/injector/review.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gpushm::injector;  // NOLINT: everything here is from it
  static const Admission admission = [] {
    Settings settings;
    settings.sidecar_image = "sidecar";
    settings.gpu_count_label = "gpus";
    settings.largest_free = LargestFree::kPrefer;
    return Admission(settings, [] { return uint64_t{1}; });
  }();
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const Endpoint endpoint : {Endpoint::kMutate, Endpoint::kValidate}) {
    const auto answer = Review(admission, {endpoint}, body);
    if (answer) GPUSHM_ASSERT(Json::accept(answer->body));
  }
  return 0;
}
