#include "tests/integration/hpp_fixture.h"

#include "platform/driver/cuda_api.h"
#include "platform/driver/device.h"
#include "tests/integration/shared_broker.h"

namespace gpushm::integration {
namespace {

struct Shared : SharedBrokerTest {
  using SharedBrokerTest::folder_;
  using SharedBrokerTest::SetUpTestSuite;
  using SharedBrokerTest::TearDownTestSuite;
};

}  // namespace

void HppTest::SetUpTestSuite() { Shared::SetUpTestSuite(); }
void HppTest::TearDownTestSuite() { Shared::TearDownTestSuite(); }
std::string HppTest::folder() { return Shared::folder_; }

std::string HppTest::ReadDevice(uint64_t address, uint64_t size_bytes) {
  std::string bytes(size_bytes, '\0');
  const auto api = CudaApi::Load(DriverFolderFromEnvironment());
  if (!api || !(*api)->Init()) return "no driver";
  auto context = PrimaryContext::Retain(**api, 0);
  if (!context || !context->MakeCurrent()) return "no context";
  if ((*api)->cuMemcpyDtoH(bytes.data(), address, size_bytes) != CUDA_SUCCESS) return "no copy";
  return bytes;
}

}  // namespace gpushm::integration
