// The sampler on the simulated NVML; faults.yaml sets its sensors while it runs.
#include "plugin/metrics/gpu_sampler.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "platform/base/clock.h"
#include "platform/base/testing.h"
#include "platform/driver/device.h"

namespace gpushm::plugin::metrics {
namespace {

using ::testing::IsEmpty;
using ::testing::Optional;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr char kGpuA[] = "GPU-aaaaaaaa-0000-0000-0000-000000000001";
constexpr char kGpuB[] = "GPU-aaaaaaaa-0000-0000-0000-000000000002";
constexpr char kInstance[] = "MIG-aaaaaaaa-0000-0000-0000-000000000003";
constexpr uint64_t kMi = uint64_t{1} << 20;
constexpr uint64_t kReserveBytes = 600 * kMi;
constexpr int64_t kPeriodMs = 20;
constexpr int64_t kLongMs = 20'000;

const NvmlApi& Nvml() {
  static const NvmlApi* const api = *NvmlApi::Load(DriverFolderFromEnvironment());
  return *api;
}

// Two GPUs, and a third one with one MIG instance.
class GpuSamplerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new gpushm::testing::TempFolder();
    setenv("GPUSHM_SIM_DIR", folder_->path().c_str(), 1);
    Write("cards.yaml", Concat("gpus:\n- {memory: 80Gi, reserve: 600Mi, uuid: ", kGpuA,
                               "}\n- {memory: 16Gi, reserve: 600Mi, uuid: ", kGpuB,
                               "}\n- memory: 80Gi\n  mig:\n  - {profile: 1g.10gb, memory: 10Gi, ",
                               "uuid: ", kInstance, "}\n"));
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  void SetUp() override { Faults("{}"); }
  // Ends the simulated hang, because the sampler would never end otherwise.
  void TearDown() override { Faults("{}"); }

  static void Write(const std::string& file, const std::string& text) {
    std::ofstream(*folder_ / (file + ".new")) << text;
    std::filesystem::rename(*folder_ / (file + ".new"), *folder_ / file);
  }
  static void Faults(const std::string& text) { Write("faults.yaml", text); }

  static std::vector<inventory::Device> Devices(const std::vector<std::string>& uuids) {
    std::vector<inventory::Device> devices = *inventory::ReadDevices(Nvml());
    std::erase_if(devices, [&](const inventory::Device& device) {
      return std::ranges::find(uuids, device.uuid) == uuids.end();
    });
    return devices;
  }

  static bool Eventually(const std::function<bool()>& holds) {
    const Deadline deadline = Deadline::AfterMs(kLongMs);
    while (!holds()) {
      if (deadline.Passed()) return false;
      poll(nullptr, 0, 2);
    }
    return true;
  }
  // A sample that was begun after this call; empty if none comes.
  static GpuSample Fresh(const GpuSampler& sampler, const std::string& uuid) {
    const int64_t now_ns = UnixNs();
    GpuSample sample;
    EXPECT_TRUE(Eventually([&] {
      const auto samples = sampler.Look();
      const auto found = samples.find(uuid);
      if (found == samples.end() || found->second.unix_ns <= now_ns) return false;
      sample = found->second;
      return true;
    })) << uuid;
    return sample;
  }
  static std::function<std::map<std::string, uint64_t>()> Buffers(uint64_t bytes) {
    return [bytes] { return std::map<std::string, uint64_t>{{kGpuA, bytes}}; };
  }

  static inline gpushm::testing::TempFolder* folder_ = nullptr;
};

TEST_F(GpuSamplerTest, EveryFieldIsInBaseUnitsAndOfItsGpu) {
  Faults(
      "sensors:\n"
      "- {gpu: 0, utilization: 0.87, memory-activity: 0.41, temperature: 61,\n"
      "   memory-temperature: 70, power-watts: 412.5, power-limit-watts: 700,\n"
      "   energy-joules: 123456.789, sm-clock-mhz: 1980, memory-clock-mhz: 3201,\n"
      "   pcie-transmit: 1500, pcie-receive: 2500, nvlink-transmit: 3000000000,\n"
      "   nvlink-receive: 4, clock-reasons: 36, ecc-corrected: 7}\n"
      "- {gpu: " +
      std::string(kGpuB) + ", temperature: 45}\nhealth: [{gpu: 0, ecc: 3}]\n");
  const GpuSampler sampler(Nvml(), Devices({kGpuA, kGpuB}), kPeriodMs,
                           {.buffers = Buffers(0), .processes = {}});
  EXPECT_EQ(sampler.driver_version(), "580.0-gpushm-sim");
  const GpuSample sample = Fresh(sampler, kGpuA);
  EXPECT_EQ(sample.pci_bus_id, "00000000:01:00.0");
  EXPECT_EQ(sample.total_bytes, 80 * 1024 * kMi);
  EXPECT_EQ(sample.used_bytes, kReserveBytes);
  EXPECT_DOUBLE_EQ(sample.utilization.value(), 0.87);
  EXPECT_DOUBLE_EQ(sample.memory_activity.value(), 0.41);
  EXPECT_DOUBLE_EQ(sample.temperature_celsius.value(), 61);
  EXPECT_DOUBLE_EQ(sample.memory_temperature_celsius.value(), 70);
  EXPECT_DOUBLE_EQ(sample.power_watts.value(), 412.5);
  EXPECT_DOUBLE_EQ(sample.power_limit_watts.value(), 700);
  EXPECT_DOUBLE_EQ(sample.energy_joules.value(), 123456.789);
  EXPECT_DOUBLE_EQ(sample.sm_clock_hertz.value(), 1.98e9);
  EXPECT_DOUBLE_EQ(sample.memory_clock_hertz.value(), 3.201e9);
  EXPECT_DOUBLE_EQ(sample.pcie_transmit_bytes_per_second.value(), 1.5e6);
  EXPECT_DOUBLE_EQ(sample.pcie_receive_bytes_per_second.value(), 2.5e6);
  EXPECT_DOUBLE_EQ(sample.nvlink_transmit_bytes.value(), 3e9 * 1024);
  EXPECT_DOUBLE_EQ(sample.nvlink_receive_bytes.value(), 4096);
  EXPECT_EQ(sample.clock_reasons, 0x4U | 0x20U);
  EXPECT_EQ(sample.ecc_corrected, 7U);
  EXPECT_EQ(sample.ecc_uncorrected, 3U);
  const GpuSample other = Fresh(sampler, kGpuB);
  EXPECT_DOUBLE_EQ(other.temperature_celsius.value(), 45);
  EXPECT_EQ(other.total_bytes, 16 * 1024 * kMi);
  EXPECT_FALSE(other.power_watts);
  EXPECT_EQ(other.ecc_uncorrected, 0U);
}

TEST_F(GpuSamplerTest, WhatTheDriverDoesNotGiveIsAbsent) {
  Faults("unsupported: [nvmlDeviceGetUtilizationRates]\n");
  const GpuSampler sampler(Nvml(), Devices({kGpuA, kInstance}), kPeriodMs,
                           {.buffers = Buffers(0), .processes = {}});
  for (const std::string uuid : {kGpuA, kInstance}) {
    const GpuSample sample = Fresh(sampler, uuid);
    EXPECT_TRUE(sample.used_bytes);
    EXPECT_FALSE(sample.utilization);
    EXPECT_FALSE(sample.memory_activity);
    EXPECT_FALSE(sample.temperature_celsius);
    EXPECT_FALSE(sample.memory_temperature_celsius);
    EXPECT_FALSE(sample.power_watts);
    EXPECT_FALSE(sample.power_limit_watts);
    EXPECT_FALSE(sample.energy_joules);
    EXPECT_FALSE(sample.sm_clock_hertz);
    EXPECT_FALSE(sample.memory_clock_hertz);
    EXPECT_FALSE(sample.pcie_transmit_bytes_per_second);
    EXPECT_FALSE(sample.pcie_receive_bytes_per_second);
    EXPECT_FALSE(sample.nvlink_transmit_bytes);
    EXPECT_FALSE(sample.nvlink_receive_bytes);
    EXPECT_FALSE(sample.clock_reasons);
    EXPECT_FALSE(sample.ecc_corrected);
    EXPECT_THAT(sample.private_bytes, IsEmpty());
  }
  EXPECT_FALSE(Fresh(sampler, kInstance).ecc_uncorrected);
}

TEST_F(GpuSamplerTest, ALostGpuHasNoSampleUntilItIsBack) {
  const GpuSampler sampler(Nvml(), Devices({kGpuA, kGpuB}), kPeriodMs,
                           {.buffers = Buffers(0), .processes = {}});
  Fresh(sampler, kGpuA);
  Faults(Concat("lost: [", kGpuA, "]\n"));
  EXPECT_TRUE(Eventually([&] { return !sampler.Look().contains(kGpuA); }));
  Fresh(sampler, kGpuB);
  Faults("{}");
  EXPECT_TRUE(Fresh(sampler, kGpuA).used_bytes);
}

// Goal: a scrape does not wait for an unhealthy GPU, and does not show its values indefinitely.
TEST_F(GpuSamplerTest, ALookAnswersWhileNvmlHangsAndTheSampleGoesStale) {
  constexpr int64_t kSlowMs = 200;
  const GpuSampler sampler(Nvml(), Devices({kGpuA}), kSlowMs,
                           {.buffers = Buffers(0), .processes = {}});
  Fresh(sampler, kGpuA);
  // Longer than the test may take.
  Faults("hang: {nvmlDeviceGetPowerUsage: 600000}\n");
  int64_t last_ns = 0;
  EXPECT_TRUE(Eventually([&] {
    const auto samples = sampler.Look();
    if (!samples.empty()) last_ns = samples.begin()->second.unix_ns;
    return samples.empty();
  }));
  EXPECT_GE(UnixNs() - last_ns, GpuSampler::kStaleRounds * kSlowMs * 1'000'000);
  Faults("{}");
  Fresh(sampler, kGpuA);
}

TEST_F(GpuSamplerTest, OtherBytesAreWhatIsUsedLessTheLedger) {
  const auto other = [](std::function<std::map<std::string, uint64_t>()> buffers) {
    const GpuSampler sampler(Nvml(), Devices({kGpuA}), kPeriodMs,
                             {.buffers = std::move(buffers), .processes = {}});
    const GpuSample sample = Fresh(sampler, kGpuA);
    EXPECT_EQ(sample.used_bytes, kReserveBytes);
    return sample.other_bytes;
  };
  EXPECT_THAT(other(Buffers(100 * kMi)), Optional(500 * kMi));
  EXPECT_THAT(other([] { return std::map<std::string, uint64_t>(); }), Optional(kReserveBytes));
  EXPECT_EQ(other(Buffers(kReserveBytes + 1)), std::nullopt) << "more than is used";
  uint64_t bytes = 0;
  EXPECT_EQ(other([&] { return std::map<std::string, uint64_t>{{kGpuA, ++bytes}}; }), std::nullopt)
      << "a ledger that always changes";
  // The ledger stops changing after a while: the second attempt succeeds.
  uint64_t calls = 0;
  EXPECT_THAT(
      other([&] {
        return std::map<std::string, uint64_t>{{kGpuA, std::min<uint64_t>(++calls, 2) * kMi}};
      }),
      Optional(kReserveBytes - 2 * kMi));
}

// Goal: what a container offered does not count as private for any of its processes. Method: its
// first process is a launcher without CUDA, and the second one is connected twice.
TEST_F(GpuSamplerTest, PrivateBytesAreOfTheProcessesThatNvmlShows) {
  const auto api = CudaApi::Load(DriverFolderFromEnvironment());
  ASSERT_TRUE(api && (*api)->Init());
  std::atomic<uint64_t> offered = 0;
  const auto self = static_cast<uint32_t>(getpid());
  const auto clients = [&] {
    const uint64_t bytes = offered;
    return keeper::NodeProcesses{.clients = {{1, "m0000", "app", bytes},
                                             {self, "m0000", "app", bytes},
                                             {self, "m0000", "app", bytes},
                                             {2, "m0001", "app", 0}},
                                 .mps_pods = {}};
  };
  const GpuSampler sampler(Nvml(), Devices({kGpuA, kGpuB}), kPeriodMs,
                           {.buffers = Buffers(0), .processes = clients});
  EXPECT_THAT(Fresh(sampler, kGpuA).private_bytes, IsEmpty())
      << "without a context NVML does not see the process";
  const auto context = PrimaryContext::Retain(**api, 0);
  ASSERT_TRUE(context);
  const uint64_t bytes = *Fresh(sampler, kGpuA).other_bytes - kReserveBytes;
  EXPECT_GT(bytes, 0U);
  EXPECT_THAT(Fresh(sampler, kGpuA).private_bytes,
              UnorderedElementsAre(Pair(Pair("m0000", "app"), bytes)));
  EXPECT_THAT(Fresh(sampler, kGpuB).private_bytes, IsEmpty());
  offered = bytes / 2;
  EXPECT_THAT(Fresh(sampler, kGpuA).private_bytes,
              UnorderedElementsAre(Pair(Pair("m0000", "app"), bytes - bytes / 2)));
  offered = bytes + 1;
  EXPECT_THAT(Fresh(sampler, kGpuA).private_bytes,
              UnorderedElementsAre(Pair(Pair("m0000", "app"), 0)));
}

// Goal: a process that uses the GPU beside its pod's MPS is counted. Method: the process is this
// one, which is no client; a folder says in which pod it is.
TEST_F(GpuSamplerTest, CountsProcessesOutsideTheirPodsMps) {
  const auto api = CudaApi::Load(DriverFolderFromEnvironment());
  ASSERT_TRUE(api && (*api)->Init());
  const auto self = static_cast<uint32_t>(getpid());
  const auto write = [&](uint32_t pid, const std::string& cgroup) {
    std::filesystem::create_directories(Concat(folder_->path(), "/proc/", pid));
    std::ofstream(Concat(folder_->path(), "/proc/", pid, "/cgroup")) << "0::" << cgroup << "\n";
  };
  write(1, "/pods/pod-a/broker");
  write(2, "/pods/pod-b/broker");
  write(self, "/pods/pod-a/app");
  const auto processes = [&] {
    return keeper::NodeProcesses{.clients = {}, .mps_pods = {{"m0000", 1}, {"m0001", 2}}};
  };
  const GpuSampler sampler(
      Nvml(), Devices({kGpuA}), kPeriodMs,
      {.buffers = Buffers(0), .processes = processes, .proc = folder_->path() + "/proc"});
  const auto context = PrimaryContext::Retain(**api, 0);
  ASSERT_TRUE(context);
  EXPECT_THAT(Fresh(sampler, kGpuA).outside_mps,
              UnorderedElementsAre(Pair("m0000", 1), Pair("m0001", 0)));
  EXPECT_FALSE(sampler.Look().contains(kGpuB)) << "only the devices that it is given";
}

}  // namespace
}  // namespace gpushm::plugin::metrics
