// Goal: what is kept of a broker that has ended is the real memory. Method: brokers in separate
// processes, and the simulated driver. tests/simulation kills brokers anywhere.
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "platform/driver/cuda_api.h"
#include "platform/driver/device.h"
#include "platform/driver/nvml_api.h"
#include "plugin/keeper/testing/keeper_fixture.h"

namespace gpushm::plugin::testing {
namespace {

// A counter that parent and child share.
class SharedCounter {
 public:
  SharedCounter()
      : page_(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
        value_(new(page_) std::atomic<uint32_t>(0)) {}
  ~SharedCounter() { munmap(page_, 4096); }
  SharedCounter(const SharedCounter&) = delete;
  SharedCounter& operator=(const SharedCounter&) = delete;
  std::atomic<uint32_t>& operator*() const { return *value_; }

 private:
  void* page_;
  std::atomic<uint32_t>* value_;
};

// ---- real memory, of the simulated driver

uint64_t UsedBytes() {
  const auto api = NvmlApi::Load(DriverFolderFromEnvironment());
  nvmlDevice_t device = nullptr;
  nvmlMemory_t memory{};
  if (!api || (*api)->nvmlDeviceGetHandleByIndex_v2(0, &device) != NVML_SUCCESS ||
      (*api)->nvmlDeviceGetMemoryInfo(device, &memory) != NVML_SUCCESS) {
    ADD_FAILURE() << "NVML does not answer";
    return 0;
  }
  return memory.used;
}

// In a child: allocates on the card and states it; afterwards only the keeper has it.
void AllocateAndState(const std::string& socket) {
  const auto api = CudaApi::Load(DriverFolderFromEnvironment());
  if (!api || !(*api)->Init()) return;
  const auto memory = DeviceMemory::Create(**api, 0, 64 * kMiB);
  const auto exported = memory ? memory->Export() : std::unexpected(memory.error());
  if (!exported) return;
  FakeBroker broker(socket);
  if (!broker.Greet(true)) return;
  (void)broker.Say(BufferOf("weights", 7));
  (void)broker.Say(GenerationOf("weights", 7, 64 * kMiB), exported->get());
}

TEST_F(KeeperTest, MemoryStaysOnTheCardUntilItIsDropped) {
  const char* const state = std::getenv("GPUSHM_SIM_DIR");
  ASSERT_NE(state, nullptr) << "ctest must set it";
  std::filesystem::create_directories(state);
  StartKeeper({.memory = MemoryKind::Of(state)});
  Open("m0000");
  const uint64_t before = UsedBytes();
  Process broker([&] { AllocateAndState(folder_.Socket("m0000")); });
  ASSERT_TRUE(broker.WaitForEnd());
  ASSERT_TRUE(events_.Wait("m0000", false));
  EXPECT_EQ(Look("m0000").kept.pooled_bytes, 64 * kMiB);
  EXPECT_EQ(UsedBytes(), before + 64 * kMiB) << "its process has ended";
  // A successor can use it.
  const SharedCounter imported;
  Process successor([&] {
    const auto api = CudaApi::Load(DriverFolderFromEnvironment());
    FakeBroker next(folder_.Socket("m0000"));
    if (!api || !(*api)->Init() || !next.Greet(true, 2)) return;
    (void)next.Next();
    const auto generation = next.Next();
    if (!generation || generation->descriptors.size() != 1) return;
    if (DeviceMemory::Import(**api, generation->descriptors[0].get())) *imported = 1;
  });
  ASSERT_TRUE(successor.WaitForEnd());
  EXPECT_EQ(*imported, 1u);
  ASSERT_TRUE(events_.Wait("m0000", false, 2));
  EXPECT_EQ(UsedBytes(), before + 64 * kMiB);
  keeper_->Drop({"m0000"});
  EXPECT_TRUE(Eventually([&] { return UsedBytes() == before; }));
}

}  // namespace
}  // namespace gpushm::plugin::testing
