// Goal: an application of a pod with two GPUs makes, finds and uses buffers on each of them.
// Method: a broker started by hand on a simulated machine, and the library in this process. A
// process's driver knows one machine, so this is a separate program with one test.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "platform/base/testing/must.h"
#include "platform/driver/cuda_api.h"
#include "platform/driver/device.h"
#include "runtime/include/gpushm/gpushm.h"
#include "tests/integration/fixture.h"

namespace gpushm::integration {
namespace {

using ::gpushm::testing::Must;
using ::testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr char kMachine[] = R"(gpus:
- {uuid: GPU-aaaaaaaa-0000-0000-0000-000000000000, memory: 8Gi}
- {uuid: GPU-aaaaaaaa-0000-0000-0000-000000000001, memory: 8Gi}
)";
constexpr char kPod[] = R"(annotations:
  gpushm.io/gpus: "2"
  buffers.gpushm.io/weights: {size: 2Mi, gpu: each}
gpu: [0, 1]
)";

class GpusTest : public IntegrationTest {
 protected:
  GpusTest() {
    std::filesystem::create_directory(folder_ + "/sim");
    std::ofstream(folder_ + "/sim/cards.yaml") << kMachine;
    std::ofstream(folder_ + "/broker.yaml") << kPod;
  }
};

class Application {
 public:
  explicit Application(const std::string& folder) : client_(OpenClient(folder)) {}
  ~Application() { gpushm_close(client_); }

  gpushm_client* get() const { return client_; }
  std::vector<gpushm_gpu_info> Gpus() const {
    std::vector<gpushm_gpu_info> gpus(16, Sized<gpushm_gpu_info>());
    size_t count = 0;
    EXPECT_EQ(gpushm_list_gpus(client_, gpus.data(), gpus.size(), &count), GPUSHM_OK);
    gpus.resize(count);
    return gpus;
  }
  // The number of the GPU of a name.
  uint32_t GpuOf(const char* name) const {
    auto info = Sized<gpushm_info>();
    EXPECT_EQ(gpushm_lookup(client_, name, &info), GPUSHM_OK) << name;
    return info.gpu;
  }
  gpushm_attachment* Attach(const char* name) const {
    gpushm_attachment* attachment = nullptr;
    EXPECT_EQ(gpushm_attach(client_, name, nullptr, &attachment), GPUSHM_OK)
        << gpushm_last_error()->text;
    return attachment;
  }

 private:
  gpushm_client* const client_;
};

int32_t DeviceOf(const gpushm_attachment* attachment) {
  auto info = Sized<gpushm_attachment_info>();
  EXPECT_EQ(gpushm_attachment_get_info(attachment, &info), GPUSHM_OK);
  return info.device;
}

TEST_F(GpusTest, BuffersAreMadeWhereTheyAreAsked) {
  const auto loaded = Must(CudaApi::Load(DriverFolderFromEnvironment()));
  const CudaApi& api = *loaded;
  const auto devices = Must(ListDevices(api));
  if (devices.size() != 2) GTEST_SKIP() << "this test needs two GPUs";
  const Broker broker(run(), "16Mi", {"--config", folder_ + "/broker.yaml"});
  const Application app(run());
  gpushm_client* const client = app.get();
  ASSERT_NE(client, nullptr);

  const std::vector<gpushm_gpu_info> gpus = app.Gpus();
  ASSERT_EQ(gpus.size(), 2U);
  for (uint32_t gpu = 0; gpu < 2; ++gpu) {
    const gpushm_gpu_info& info = gpus[gpu];
    EXPECT_EQ(info.gpu, gpu);
    EXPECT_EQ(std::memcmp(info.gpu_uuid, devices[gpu].uuid.bytes.data(), sizeof info.gpu_uuid), 0);
    EXPECT_EQ(info.pool_bytes, 16 * kMiB);
    EXPECT_EQ(info.used_bytes, 2 * kMiB);
    EXPECT_EQ(info.lost, 0U);
  }

  // What is declared on each GPU is attached there.
  EXPECT_EQ(DeviceOf(app.Attach("weights-0")), 0);
  EXPECT_EQ(DeviceOf(app.Attach("weights-1")), 1);

  // The bytes are on the GPU that was asked for.
  const auto context = PrimaryContext::Retain(api, 1);
  ASSERT_TRUE(context && context->MakeCurrent());
  auto on_1 = Sized<gpushm_create_options>();
  on_1.gpu = 1;
  gpushm_attachment* made = nullptr;
  ASSERT_EQ(gpushm_create(client, "made", 4 * kMiB, &on_1, &made), GPUSHM_OK)
      << gpushm_last_error()->text;
  EXPECT_EQ(DeviceOf(made), 1);
  EXPECT_EQ(app.GpuOf("made"), 1U);
  const uint32_t word = 4711;
  EXPECT_EQ(api.cuMemcpyHtoD(gpushm_attachment_address(made), &word, sizeof word), CUDA_SUCCESS);
  EXPECT_EQ(app.Gpus()[1].used_bytes, 6 * kMiB);
  EXPECT_EQ(app.Gpus()[0].used_bytes, 2 * kMiB);

  // A new generation stays there, whatever the options say.
  auto next = Sized<gpushm_create_options>();
  next.unpublished = 1;
  gpushm_attachment* replaced = nullptr;
  ASSERT_EQ(gpushm_replace(client, "made", 2 * kMiB, &next, &replaced), GPUSHM_OK)
      << gpushm_last_error()->text;
  EXPECT_EQ(DeviceOf(replaced), 1);
  ASSERT_EQ(gpushm_attachment_publish(replaced), GPUSHM_OK);
  EXPECT_EQ(app.GpuOf("made"), 1U);
  next = on_1;
  next.exist = GPUSHM_EXIST_REPLACE;
  ASSERT_EQ(gpushm_create(client, "weights-0", 2 * kMiB, &next, &replaced), GPUSHM_OK)
      << gpushm_last_error()->text;
  EXPECT_EQ(DeviceOf(replaced), 0);

  auto on_2 = Sized<gpushm_create_options>();
  on_2.gpu = 2;
  EXPECT_EQ(gpushm_create(client, "none", kMiB, &on_2, nullptr), GPUSHM_INVALID_ARGUMENT);
  EXPECT_THAT(gpushm_last_error()->text, HasSubstr("gpu is 2, but the pod has 2 GPUs"));
  EXPECT_EQ(gpushm_create(client, "large", 64 * kMiB, &on_1, nullptr), GPUSHM_EXHAUSTED);
  EXPECT_THAT(gpushm_last_error()->text, HasSubstr("the pool on GPU 1 has"));

  // Offered memory is where it is, and so is its copy.
  const auto memory = Must(DeviceMemory::Create(api, 1, 2 * kMiB));
  const auto mapping = Must(DeviceMapping::Map(api, memory, 2 * kMiB, 1, Access::kReadWrite));
  ASSERT_EQ(gpushm_offer(client, "own", mapping.address(), 2 * kMiB, nullptr, nullptr), GPUSHM_OK)
      << gpushm_last_error()->text;
  EXPECT_EQ(app.GpuOf("own"), 1U);
  EXPECT_EQ(DeviceOf(app.Attach("own")), 1);
  CUmemAllocationProp unshared{};
  unshared.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  unshared.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  CUmemAccessDesc access{.location = unshared.location,
                         .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  ASSERT_EQ(api.cuMemCreate(&handle, 2 * kMiB, &unshared, 0), CUDA_SUCCESS);
  ASSERT_EQ(api.cuMemAddressReserve(&address, 2 * kMiB, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(api.cuMemMap(address, 2 * kMiB, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(api.cuMemSetAccess(address, 2 * kMiB, &access, 1), CUDA_SUCCESS);
  auto copying = Sized<gpushm_offer_options>();
  copying.allow_copy = 1;
  auto result = Sized<gpushm_offer_result>();
  ASSERT_EQ(gpushm_offer(client, "copy", address, 2 * kMiB, &copying, &result), GPUSHM_OK)
      << gpushm_last_error()->text;
  EXPECT_EQ(result.copied, 1U);
  EXPECT_EQ(app.GpuOf("copy"), 1U);
}

}  // namespace
}  // namespace gpushm::integration
