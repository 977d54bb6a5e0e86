// Goal: a signal keeps working when the application ends its CUDA context and makes another one,
// possibly at the same address. Method: the simulated driver, whose primary context always has that
// address.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "platform/driver/cuda_api.h"
#include "platform/driver/device.h"
#include "tests/integration/processes.h"

// After the internal headers, which have a gpushm::Result of their own.
#include "gpushm/sync.hpp"

namespace gpushm::integration {
namespace {

TEST(ContextTest, ASignalOutlivesItsContext) {
  std::string name = (std::filesystem::temp_directory_path() / "gpushm-ctx-XXXXXX").string();
  const std::string folder = mkdtemp(name.data());
  setenv("GPUSHM_SIM_DIR", (folder + "/sim").c_str(), 1);
  std::filesystem::create_directory(folder + "/run");
  {
    Broker broker(folder + "/run", "64Mi");
    const auto api = CudaApi::Load(DriverFolderFromEnvironment());
    ASSERT_TRUE(api && (*api)->Init());
    auto client = Client::Open({.folder = folder + "/run"});
    ASSERT_TRUE(client) << client.error().text();
    auto signal = Signal::Open(*client, "ready", {.role = GPUSHM_SIGNAL_WRITER});
    ASSERT_TRUE(signal) << signal.error().text();
    CUcontext first = nullptr;
    for (uint64_t value = 1; value <= 3; ++value) {
      const auto context = PrimaryContext::Retain(**api, 0);
      ASSERT_TRUE(context && context->MakeCurrent());
      if (first == nullptr) first = context->context();
      ASSERT_EQ(context->context(), first)
          << "the new context must have the old one's address, or the test proves nothing";
      const auto stream = Stream::Create(**api);
      ASSERT_TRUE(stream);
      const auto recorded = signal->Record(stream->get(), value);
      ASSERT_TRUE(recorded) << recorded.error().text();
      ASSERT_EQ((*api)->cuStreamSynchronize(stream->get()), CUDA_SUCCESS);
      ASSERT_EQ(signal->GetInfo()->value, value);
    }
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
}

}  // namespace
}  // namespace gpushm::integration
