// The promises of the simulated driver alone; those that it shares with a real one are in
// tests/conformance.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>

#include "platform/base/testing.h"
#include "platform/base/unique_fd.h"
#include "platform/driver/device.h"
#include "platform/driver/nvml_api.h"
#include "simulator/config.h"
#include "simulator/faults.h"

namespace gpushm::sim {
namespace {

constexpr char kCardFolder[] = "51700000000040008000000000000000";

const CudaApi& Cuda() {
  static const CudaApi* const api = *CudaApi::Load(DriverFolderFromEnvironment());
  return *api;
}

// Each test has its own state folder. Only forked children use CUDA.
class SimTest : public ::testing::Test {
 protected:
  SimTest() {
    char name[] = "/var/tmp/gpushm-sim-test-XXXXXX";
    folder_ = mkdtemp(name);
    setenv("GPUSHM_SIM_DIR", folder_.c_str(), 1);
  }
  ~SimTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) const {
    // Renamed into place, so that a reader sees it whole.
    std::ofstream(folder_ + "/" + name + ".new") << text;
    std::filesystem::rename(folder_ + "/" + name + ".new", folder_ + "/" + name);
  }

  static pid_t Fork(const std::function<void()>& body) {
    const pid_t pid = fork();
    if (pid != 0) return pid;
    body();
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  static void Run(const std::function<void()>& body) {
    int status = 0;
    waitpid(Fork(body), &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }

  static uint64_t UsedBytes() {
    const NvmlApi& nvml = **NvmlApi::Load(DriverFolderFromEnvironment());
    nvmlDevice_t device = nullptr;
    nvmlMemory_t memory{};
    EXPECT_EQ(nvml.nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    EXPECT_EQ(nvml.nvmlDeviceGetMemoryInfo(device, &memory), NVML_SUCCESS);
    return memory.used;
  }
  size_t AllocationFiles() const {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/" + kCardFolder)) {
      count += entry.path().filename().string().size() == 32 ? 1 : 0;
    }
    return count;
  }

  std::string folder_;
};

// Goal: no moment of death leaves bytes that count, or a lock.
// Method: processes that create, export, import, map and release as fast as they can are killed at
// random times. Afterwards the card must be empty and usable for the survivors.
TEST_F(SimTest, KillsAtRandomTimesLeaveNothing) {
  constexpr int kProcesses = 6;
  const int rounds = 60 / testing::Stride();
  const auto churn = [] {
    if (!Cuda().Init()) _exit(1);
    for (;;) {
      auto memory = DeviceMemory::Create(Cuda(), 0, 2 * kMiB);
      if (!memory) _exit(1);
      auto fd = memory->Export();
      if (!fd) _exit(1);
      auto imported = DeviceMemory::Import(Cuda(), fd->get());
      if (!imported) _exit(1);
      auto mapping = DeviceMapping::Map(Cuda(), *imported, 2 * kMiB, 0, Access::kReadWrite);
      if (!mapping) _exit(1);
    }
  };
  SCOPED_TRACE(testing::StrideNote());
  std::minstd_rand random(static_cast<unsigned>(1 + testing::Offset()));
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) children.push_back(Fork(churn));
  for (int round = 0; round < rounds; ++round) {
    usleep(static_cast<useconds_t>(random() % 8000));  // sleep: the random time.
    pid_t& victim = children[random() % kProcesses];
    kill(victim, SIGKILL);
    int status = 0;
    waitpid(victim, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "a process failed before it was killed";
    victim = Fork(churn);
  }
  for (const pid_t child : children) kill(child, SIGKILL);
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  Run([&] {
    EXPECT_EQ(UsedBytes(), 0U);
    EXPECT_EQ(AllocationFiles(), 0U);
    EXPECT_TRUE(Cuda().Init());
    EXPECT_TRUE(DeviceMemory::Create(Cuda(), 0, uint64_t{80} << 30).has_value());
  });
}

TEST_F(SimTest, CardFilledByKilledProcessesIsUsableWithoutProbing) {
  for (int i = 0; i < 4; ++i) {
    const pid_t child = Fork([] {
      if (!Cuda().Init()) _exit(1);
      auto memory = DeviceMemory::Create(Cuda(), 0, uint64_t{60} << 30);
      if (memory) kill(getpid(), SIGKILL);
      _exit(1);
    });
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "the dead predecessor's memory still counts";
  }
}

TEST_F(SimTest, HalfMadeAllocationOfKilledCreatorIsRemoved) {
  Run([] {
    EXPECT_TRUE(Cuda().Init()) << "this makes the folder";
    EXPECT_EQ(UsedBytes(), 0U);
  });
  std::ofstream(folder_ + "/" + kCardFolder + "/00112233445566778899aabbccddeeff") << "half";
  Run([&] {
    EXPECT_EQ(UsedBytes(), 0U);
    EXPECT_EQ(AllocationFiles(), 0U);
  });
}

TEST_F(SimTest, ForeignFilesAreLeftAlone) {
  Run([] { EXPECT_EQ(UsedBytes(), 0U); });
  const std::string card = folder_ + "/" + kCardFolder;
  std::ofstream(card + "/README") << "not ours";
  std::filesystem::create_directory(card + "/ffffffffffffffffffffffffffffffff");
  std::ofstream(card + "/ledger") << "garbage in the ledger";
  Run([&] {
    EXPECT_EQ(UsedBytes(), 0U);
    ASSERT_TRUE(Cuda().Init());
    EXPECT_TRUE(DeviceMemory::Create(Cuda(), 0, 2 * kMiB).has_value());
  });
  EXPECT_TRUE(std::filesystem::exists(card + "/README"));
}

TEST_F(SimTest, FilesAreOpenToEveryUserWhateverTheUmask) {
  umask(0077);
  Run([&] {
    ASSERT_TRUE(Cuda().Init());
    const auto memory = DeviceMemory::Create(Cuda(), 0, 2 * kMiB);
    ASSERT_TRUE(memory.has_value());
    for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/" + kCardFolder)) {
      struct stat status{};
      ASSERT_EQ(stat(entry.path().c_str(), &status), 0);
      EXPECT_EQ(status.st_mode & 0777U, 0666U) << entry.path();
    }
    struct stat status{};
    ASSERT_EQ(stat((folder_ + "/" + kCardFolder).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777U, 0777U);
  });
  umask(0022);
}

TEST_F(SimTest, SparseAllocationsCostNoDisk) {
  Run([&] {
    ASSERT_TRUE(Cuda().Init());
    const auto memory = DeviceMemory::Create(Cuda(), 0, uint64_t{64} << 30);
    ASSERT_TRUE(memory.has_value());
    for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/" + kCardFolder)) {
      struct stat status{};
      ASSERT_EQ(stat(entry.path().c_str(), &status), 0);
      EXPECT_LT(status.st_blocks * 512, 65536);
    }
  });
}

TEST_F(SimTest, MalformedCardsAreRefused) {
  for (const char* text :
       {"gpus: 5", "gpu: []", "gpus: [{memory: 80Gb}]", "gpus: [{memory: -1}]",
        "gpus: [{memory: 0}]", "gpus: [{uuid: GPU-1}]", "gpus: [{nmae: x}]", "latency: {creat: 1}",
        "latency: fast", "gpus: [{memory: 1Gi, mig: [{profile: a, memory: 2Gi}]}]", "[",
        ("gpus: [{uuid: GPU-00000000-0000-0000-0000-000000000001},"
         " {uuid: GPU-00000000-0000-0000-0000-000000000001}]")}) {
    Machine machine;
    std::string error;
    EXPECT_FALSE(ParseMachine(text, &machine, &error)) << text;
    EXPECT_FALSE(error.empty());
  }
  Write("cards.yaml", "gpus: 5");
  Run([] { EXPECT_EQ(Cuda().cuInit(0), CUDA_ERROR_SYSTEM_NOT_READY); });
}

TEST_F(SimTest, CardsDescribeGpusAndMigInstances) {
  Write("cards.yaml",
        "gpus:\n"
        "- {name: A, memory: 16Gi, reserve: 512Mi}\n"
        "- {name: B, memory: 40Gi, mig: [{profile: 1g.10gb, memory: 10Gi}]}\n");
  Run([] {
    const auto devices = ListDevices(Cuda());
    ASSERT_TRUE(devices.has_value());
    ASSERT_EQ(devices->size(), 1U);  // CUDA does not show a GPU in MIG mode.
    EXPECT_EQ(devices->front().name, "A");
    EXPECT_EQ(UsedBytes(), 512 * kMiB);
  });
  Run([] {
    setenv("CUDA_VISIBLE_DEVICES", "MIG-51700000-0000-4000-8000-000100000001", 1);
    const auto devices = ListDevices(Cuda());
    ASSERT_TRUE(devices.has_value());
    EXPECT_EQ(devices->front().total_bytes, uint64_t{10} << 30);
  });
  Run([] {
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    EXPECT_EQ(Cuda().cuInit(0), CUDA_ERROR_NO_DEVICE);
  });
}

TEST_F(SimTest, FaultsAreInjectedWhileTheProcessRuns) {
  Run([&] {
    ASSERT_TRUE(Cuda().Init());
    EXPECT_TRUE(DeviceMemory::Create(Cuda(), 0, 2 * kMiB).has_value());
    Write("faults.yaml", "results: {cuMemCreate: 2}\nhang: {cuDeviceGetCount: 50}");
    EXPECT_FALSE(DeviceMemory::Create(Cuda(), 0, 2 * kMiB).has_value());
    const auto begin = std::chrono::steady_clock::now();
    int count = 0;
    EXPECT_EQ(Cuda().cuDeviceGetCount(&count), CUDA_SUCCESS);
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(50));
    Write("faults.yaml", "lost: ['0']");
    EXPECT_EQ(Cuda().cuDeviceGetCount(&count), CUDA_ERROR_DEVICE_UNAVAILABLE);
    std::filesystem::remove(folder_ + "/faults.yaml");
    EXPECT_TRUE(DeviceMemory::Create(Cuda(), 0, 2 * kMiB).has_value());
  });
  Faults faults;
  std::string error;
  EXPECT_FALSE(ParseFaults("result: {}", &faults, &error));
  EXPECT_FALSE(ParseFaults("xids: [{gpu: a}]", &faults, &error));
  EXPECT_FALSE(ParseFaults("sensors: [{gpu: 0, temprature: 50}]", &faults, &error));
  EXPECT_FALSE(ParseFaults("sensors: [{gpu: 0, utilization: 87}]", &faults, &error));
  EXPECT_FALSE(ParseFaults("sensors: [{temperature: 50}]", &faults, &error));
}

TEST_F(SimTest, XidsReachEventSetsAndLostGpusAnswerSo) {
  Run([&] {
    const NvmlApi& nvml = **NvmlApi::Load(DriverFolderFromEnvironment());
    nvmlDevice_t device = nullptr;
    ASSERT_EQ(nvml.nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    Write("faults.yaml", "xids: [{gpu: 0, xid: 13}]");
    nvmlEventSet_t set = nullptr;
    ASSERT_EQ(nvml.nvmlEventSetCreate(&set), NVML_SUCCESS);
    ASSERT_EQ(nvml.nvmlDeviceRegisterEvents(device, nvmlEventTypeXidCriticalError, set),
              NVML_SUCCESS);
    nvmlEventData_t event{};
    EXPECT_EQ(nvml.nvmlEventSetWait_v2(set, &event, 30), NVML_ERROR_TIMEOUT)
        << "an old event was delivered";
    std::thread writer(
        [&] { Write("faults.yaml", "xids: [{gpu: 0, xid: 13}, {gpu: 0, xid: 79}]"); });
    EXPECT_EQ(nvml.nvmlEventSetWait_v2(set, &event, 5000), NVML_SUCCESS);
    writer.join();
    EXPECT_EQ(event.eventData, 79U);
    EXPECT_EQ(nvml.nvmlEventSetWait_v2(set, &event, 30), NVML_ERROR_TIMEOUT)
        << "the event was delivered twice";
    EXPECT_EQ(nvml.nvmlEventSetFree(set), NVML_SUCCESS);
    Write("faults.yaml", "lost: ['0']");
    nvmlMemory_t memory{};
    EXPECT_EQ(nvml.nvmlDeviceGetMemoryInfo(device, &memory), NVML_ERROR_GPU_IS_LOST);
  });
}

TEST_F(SimTest, NvmlTellsOfHealthAndOfADriverThatIsGone) {
  Write("cards.yaml",
        "gpus:\n- memory: 80Gi\n- memory: 80Gi\n  mig:\n"
        "  - {profile: 1g.10gb, memory: 10Gi}\n  - {profile: 2g.20gb, memory: 20Gi}\n");
  Write("faults.yaml", "health: [{gpu: 0, ecc: 3, remap_failed: true, recovery: 1}]");
  Run([&] {
    const NvmlApi& nvml = **NvmlApi::Load(DriverFolderFromEnvironment());
    nvmlDevice_t device = nullptr;
    ASSERT_EQ(nvml.nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    unsigned corrected = 0, uncorrected = 0, pending = 9, failed = 9;
    ASSERT_EQ(nvml.nvmlDeviceGetRemappedRows(device, &corrected, &uncorrected, &pending, &failed),
              NVML_SUCCESS);
    EXPECT_EQ(pending, 0U);
    EXPECT_EQ(failed, 1U);
    unsigned long long errors = 0;
    ASSERT_EQ(nvml.nvmlDeviceGetTotalEccErrors(device, NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                                               NVML_VOLATILE_ECC, &errors),
              NVML_SUCCESS);
    EXPECT_EQ(errors, 3U);
    nvmlFieldValue_t value{};
    value.fieldId = 230;
    ASSERT_EQ(nvml.nvmlDeviceGetFieldValues(device, 1, &value), NVML_SUCCESS);
    EXPECT_EQ(value.value.uiVal, 1U);
    nvmlDevice_t gpu = nullptr, instance = nullptr;
    ASSERT_EQ(nvml.nvmlDeviceGetHandleByIndex_v2(1, &gpu), NVML_SUCCESS);
    ASSERT_EQ(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 1, &instance), NVML_SUCCESS);
    unsigned id = 0;
    EXPECT_EQ(nvml.nvmlDeviceGetGpuInstanceId(instance, &id), NVML_SUCCESS);
    EXPECT_EQ(id, 2U);
    EXPECT_EQ(nvml.nvmlDeviceGetGpuInstanceId(gpu, &id), NVML_ERROR_INVALID_ARGUMENT);

    Write("faults.yaml", "driver_gone: true");
    nvmlMemory_t memory{};
    EXPECT_EQ(nvml.nvmlDeviceGetMemoryInfo(device, &memory), NVML_ERROR_UNKNOWN);
    EXPECT_EQ(nvml.Restart(), NVML_ERROR_DRIVER_NOT_LOADED);
    EXPECT_EQ(nvml.nvmlDeviceGetMemoryInfo(device, &memory), NVML_ERROR_UNINITIALIZED);
    std::filesystem::remove(folder_ + "/faults.yaml");
    ASSERT_EQ(nvml.Restart(), NVML_SUCCESS);
    ASSERT_EQ(nvml.nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    EXPECT_EQ(nvml.nvmlDeviceGetMemoryInfo(device, &memory), NVML_SUCCESS);
  });
}

TEST_F(SimTest, NvmlTellsTheSensorsThatAreGivenAndNoOthers) {
  Write("cards.yaml",
        "gpus:\n- memory: 80Gi\n- memory: 80Gi\n  mig:\n"
        "  - {profile: 1g.10gb, memory: 10Gi}\n");
  Run([&] {
    const NvmlApi& nvml = **NvmlApi::Load(DriverFolderFromEnvironment());
    nvmlDevice_t device = nullptr, gpu = nullptr, instance = nullptr;
    ASSERT_EQ(nvml.nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    ASSERT_EQ(nvml.nvmlDeviceGetHandleByIndex_v2(1, &gpu), NVML_SUCCESS);
    ASSERT_EQ(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0, &instance), NVML_SUCCESS);
    unsigned power = 0;
    EXPECT_EQ(nvml.nvmlDeviceGetPowerUsage(device, &power), NVML_ERROR_NOT_SUPPORTED);
    nvmlUtilization_t rates{.gpu = 9, .memory = 9};
    EXPECT_EQ(nvml.nvmlDeviceGetUtilizationRates(device, &rates), NVML_SUCCESS);
    EXPECT_EQ(rates.gpu, 0U);
    Write("faults.yaml",
          "sensors:\n- {gpu: 0, utilization: 0.29, power-watts: 412.5, nvlink-receive: 5e12}\n"
          "- {gpu: 1, power-watts: 100}\n");
    EXPECT_EQ(nvml.nvmlDeviceGetUtilizationRates(device, &rates), NVML_SUCCESS);
    EXPECT_EQ(rates.gpu, 29U);
    EXPECT_EQ(nvml.nvmlDeviceGetPowerUsage(device, &power), NVML_SUCCESS);
    EXPECT_EQ(power, 412'500U);
    EXPECT_EQ(nvml.nvmlDeviceGetPowerUsage(gpu, &power), NVML_SUCCESS);
    EXPECT_EQ(nvml.nvmlDeviceGetPowerUsage(instance, &power), NVML_ERROR_NOT_SUPPORTED);
    nvmlFieldValue_t fields[2] = {};
    fields[0].fieldId = NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX;
    fields[0].scopeId = ~0U;
    fields[1].fieldId = NVML_FI_DEV_MEMORY_TEMP;
    ASSERT_EQ(nvml.nvmlDeviceGetFieldValues(device, 2, fields), NVML_SUCCESS);
    EXPECT_EQ(fields[0].nvmlReturn, NVML_SUCCESS);
    EXPECT_EQ(fields[0].value.ullVal, 5'000'000'000'000U);
    EXPECT_EQ(fields[1].nvmlReturn, NVML_ERROR_NOT_SUPPORTED);
  });
}

// Goal: a process counts as a client of MPS if a daemon is there when it initialises CUDA, and is
// not told if none is.
TEST_F(SimTest, ClientsOfMpsAreThoseThatFindADaemon) {
  const auto list = [](decltype(NvmlApi::nvmlDeviceGetComputeRunningProcesses_v3) function) {
    nvmlDevice_t device = nullptr;
    EXPECT_EQ(
        (*NvmlApi::Load(DriverFolderFromEnvironment()))->nvmlDeviceGetHandleByIndex_v2(0, &device),
        NVML_SUCCESS);
    unsigned count = 8;
    std::array<nvmlProcessInfo_t, 8> found{};
    EXPECT_EQ(function(device, &count, found.data()), NVML_SUCCESS);
    return count;
  };
  const auto use = [&](int is_client) {
    const NvmlApi& nvml = **NvmlApi::Load(DriverFolderFromEnvironment());
    setenv("CUDA_MPS_PIPE_DIRECTORY", folder_.c_str(), 1);
    EXPECT_TRUE(Cuda().Init());
    int enabled = -1;
    EXPECT_EQ(Cuda().cuDeviceGetAttribute(&enabled, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, 0),
              CUDA_SUCCESS);
    EXPECT_EQ(enabled, is_client);
    const auto context = PrimaryContext::Retain(Cuda(), 0);
    EXPECT_TRUE(context);
    EXPECT_EQ(UsedBytes(), is_client != 0 ? kMpsContextBytes : kContextBytes);
    EXPECT_EQ(list(nvml.nvmlDeviceGetComputeRunningProcesses_v3), 1U);
    EXPECT_EQ(list(nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3),
              static_cast<unsigned>(is_client));
  };
  Run([&] { use(0); });
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  (folder_ + "/control").copy(address.sun_path, sizeof address.sun_path - 1);
  const UniqueFd daemon(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(daemon.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(daemon.get(), 8), 0);
  Run([&] { use(1); });
}

// Goal: a hang blocks only the caller until faults.yaml changes.
TEST_F(SimTest, AnNvmlCallHangsUntilTheFaultGoes) {
  Write("faults.yaml", "hang: {nvmlDeviceGetPowerUsage: 600000}");
  Run([&] {
    const NvmlApi& nvml = **NvmlApi::Load(DriverFolderFromEnvironment());
    nvmlDevice_t device = nullptr;
    ASSERT_EQ(nvml.nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    std::atomic<bool> answered = false;
    std::thread asks([&] {
      unsigned power = 0;
      nvml.nvmlDeviceGetPowerUsage(device, &power);
      answered = true;
    });
    nvmlMemory_t memory{};
    EXPECT_EQ(nvml.nvmlDeviceGetMemoryInfo(device, &memory), NVML_SUCCESS);
    EXPECT_FALSE(answered);
    Write("faults.yaml", "{}");
    asks.join();
  });
}

// Goal: no data race and no leak of device addresses (run under TSan and ASan).
// Method: threads that allocate, copy, wait and free at the same time.
TEST_F(SimTest, ThreadsUseTheDriverAtOnce) {
  Run([] {
    ASSERT_TRUE(Cuda().Init());
    const auto context = PrimaryContext::Retain(Cuda(), 0);
    ASSERT_TRUE(context.has_value());
    const auto work = [&] {
      ASSERT_TRUE(context->MakeCurrent());
      for (int i = 0; i < 30; ++i) {
        auto memory = DeviceMemory::Create(Cuda(), 0, 2 * kMiB);
        ASSERT_TRUE(memory.has_value());
        auto mapping = DeviceMapping::Map(Cuda(), *memory, 2 * kMiB, 0, Access::kReadWrite);
        ASSERT_TRUE(mapping.has_value());
        auto stream = Stream::Create(Cuda());
        ASSERT_TRUE(stream.has_value());
        EXPECT_EQ(Cuda().cuStreamWriteValue64(stream->get(), mapping->address(), 5, 0),
                  CUDA_SUCCESS);
        EXPECT_EQ(Cuda().cuStreamWaitValue64(stream->get(), mapping->address(), 5,
                                             CU_STREAM_WAIT_VALUE_GEQ),
                  CUDA_SUCCESS);
        EXPECT_EQ(Cuda().cuStreamSynchronize(stream->get()), CUDA_SUCCESS);
        uint64_t value = 0;
        EXPECT_EQ(Cuda().cuMemcpyDtoH(&value, mapping->address(), sizeof value), CUDA_SUCCESS);
        EXPECT_EQ(value, 5U);
      }
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
  });
}

TEST_F(SimTest, HostCodeCannotTouchDeviceAddresses) {
  const pid_t child = Fork([] {
    if (!Cuda().Init()) _exit(1);
    auto memory = DeviceMemory::Create(Cuda(), 0, 2 * kMiB);
    auto mapping = DeviceMapping::Map(Cuda(), *memory, 2 * kMiB, 0, Access::kReadWrite);
    signal(SIGSEGV, SIG_DFL);
    *reinterpret_cast<volatile int*>(static_cast<uintptr_t>(mapping->address())) = 1;
  });
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

}  // namespace
}  // namespace gpushm::sim
