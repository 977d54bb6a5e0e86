// Goal: a signal keeps working when the application ends its CUDA context and makes another one,
// possibly at the same address. Method: the simulated driver, whose primary context always has that
// address.
#include <gtest/gtest.h>

#include "platform/driver/cuda_api.h"
#include "platform/driver/device.h"
#include "tests/integration/shared_broker.h"

// After the internal headers, which have a gpushm::Result of their own.
#include "gpushm/sync.hpp"
#include "tests/integration/must.h"

namespace gpushm::integration {
namespace {

using ContextTest = SharedBrokerTest;

TEST_F(ContextTest, ASignalOutlivesItsContext) {
  const auto api = CudaApi::Load(DriverFolderFromEnvironment());
  ASSERT_TRUE(api && (*api)->Init());
  auto client = Must(Client::Open({.folder = run()}));
  auto signal = Must(Signal::Open(client, "ready", {.role = GPUSHM_SIGNAL_WRITER}));
  CUcontext first = nullptr;
  for (uint64_t value = 1; value <= 3; ++value) {
    const auto context = PrimaryContext::Retain(**api, 0);
    ASSERT_TRUE(context && context->MakeCurrent());
    if (first == nullptr) first = context->context();
    ASSERT_EQ(context->context(), first)
        << "the new context must have the old one's address, or the test proves nothing";
    const auto stream = Stream::Create(**api);
    ASSERT_TRUE(stream);
    const auto recorded = signal.Record(stream->get(), value);
    ASSERT_TRUE(recorded) << recorded.error().text();
    ASSERT_EQ((*api)->cuStreamSynchronize(stream->get()), CUDA_SUCCESS);
    ASSERT_EQ(signal.GetInfo()->value, value);
  }
}

}  // namespace
}  // namespace gpushm::integration
