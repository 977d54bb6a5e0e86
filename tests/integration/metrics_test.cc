// Goal: the metrics for Prometheus match the GPU and the processes. Method: the real plugin, a
// broker and workers as processes. After each step, the metrics are compared with NVML, which the
// test reads itself, and with what the test did.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <sstream>

#include "platform/base/testing/must.h"
#include "platform/driver/device.h"
#include "platform/driver/nvml_api.h"
#include "plugin/testing/scrape.h"
#include "runtime/include/gpushm/gpushm.h"
#include "tests/demo/node_plugin.h"
#include "tests/integration/fixture.h"

namespace gpushm::integration {
namespace {

using ::gpushm::testing::Must;
using plugin::testing::Labels;
using plugin::testing::PortIn;
using plugin::testing::Scrape;

constexpr uint64_t kMi = uint64_t{1} << 20;
constexpr uint64_t kPoolBytes = 2048 * kMi;
// The driver's own memory for a process that allocates without a context: 0 to 4 MiB
// (docs/design/conformance.md).
constexpr uint64_t kHolderBytes = 4 * kMi;
constexpr char kPool[] = "2Gi";

class MetricsTest : public IntegrationTest {
 protected:
  void SetUp() override {
    const auto api = CudaApi::Load(DriverFolderFromEnvironment());
    ASSERT_TRUE(api && (*api)->Init());
    const auto devices = Must(ListDevices(**api));
    gpu_ = devices.front().uuid.ToString();
    simulated_ = (*api)->simulated();
    const auto nvml = Must(NvmlApi::Load(DriverFolderFromEnvironment()));
    nvml_ = nvml;
    // The simulated NVML reads its folder at this point; each test has another folder.
    ASSERT_EQ(nvml_->Restart(), NVML_SUCCESS);
    before_bytes_ = Used();
    auto plugin = Must(demo::NodePlugin::Start(
        {.folder = folder_ + "/plugin",
         .gpu = gpu_,
         .driver = simulated_ ? DriverFolderFromEnvironment() : "auto",
         .memory_bytes = kPoolBytes,
         .timeout_ms = kPatienceMs,
         .monitoring = "metrics: {address: '127.0.0.1:0', sample-ms: 100, host-pids: true}\n"
                       "status: {address: '127.0.0.1:0'}\nprobes: {address: '127.0.0.1:0'}\n"}));
    plugin_.emplace(std::move(plugin));
    ASSERT_TRUE(Eventually([&] {
      port_ = PortIn(plugin_->log(), "metrics-served");
      status_port_ = PortIn(plugin_->log(), "status-served");
      probes_port_ = PortIn(plugin_->log(), "probes-served");
      return port_ != 0 && status_port_ != 0 && probes_port_ != 0;
    }));
    broker_ = std::make_unique<Broker>(run(), kPool,
                                       std::vector<std::string>{"--link", plugin_->link_folder()});
  }

  uint64_t Used() const {
    const auto use = nvml_->Use();
    nvmlDevice_t device = nullptr;
    nvmlMemory_t memory{};
    EXPECT_EQ(nvml_->nvmlDeviceGetHandleByUUID(gpu_.c_str(), &device), NVML_SUCCESS);
    EXPECT_EQ(nvml_->nvmlDeviceGetMemoryInfo(device, &memory), NVML_SUCCESS);
    return memory.used;
  }

  Scrape Look() const { return Scrape(Scrape::Get(port_, "/metrics")); }
  uint64_t Value(const Scrape& page, const std::string& name, const Labels& labels = {}) const {
    return static_cast<uint64_t>(page.Sum(name, labels).value_or(0));
  }
  // Metrics whose sample of the GPU was taken after this call.
  Scrape Fresh() const {
    const double now = static_cast<double>(UnixNs()) * 1e-9;
    std::string text;
    EXPECT_TRUE(Eventually([&] {
      text = Scrape::Get(port_, "/metrics");
      return Scrape(text).Sum("gpushm_gpu_sampled_timestamp_seconds").value_or(0) > now;
    }));
    return Scrape(text);
  }

  // Checks everything that must always hold. `physical`: bytes of all buffers, as the test knows
  // them.
  void Check(uint64_t physical) {
    Scrape page = Fresh();
    ASSERT_TRUE(Eventually([&] {
      page = Fresh();
      return Value(page, "gpushm_gpu_memory_buffers_bytes") == physical;
    })) << Value(page, "gpushm_gpu_memory_buffers_bytes")
        << " bytes of buffers, " << physical << " expected";
    EXPECT_EQ(Value(page, "gpushm_container_memory_proportional_bytes"), physical);
    EXPECT_EQ(Value(page, "gpushm_gpu_memory_buffers_bytes") +
                  Value(page, "gpushm_gpu_memory_other_bytes"),
              Value(page, "gpushm_gpu_memory_used_bytes"));
    EXPECT_EQ(Value(page, "gpushm_gpu_memory_used_bytes"), Used());
    EXPECT_LE(Value(page, "gpushm_pool_allocated_bytes"), kPoolBytes);
    EXPECT_EQ(Value(page, "gpushm_buffer_allocated_bytes"), physical);
    EXPECT_EQ(page.Sum("gpushm_scrape_collector_success"), 3.0);
  }

  std::string gpu_;
  bool simulated_ = false;
  const NvmlApi* nvml_ = nullptr;
  uint64_t before_bytes_ = 0;
  std::optional<demo::NodePlugin> plugin_;
  int port_ = 0;
  int status_port_ = 0;
  int probes_port_ = 0;
  std::unique_ptr<Broker> broker_;
};

std::string Megabytes(uint64_t count) { return std::to_string(count * kMi); }

// Goal: NVML's used bytes rise by the sum of the buffers' bytes and a named overhead (contexts, the
// driver's own memory for each holder), within 1 %. Method: one scripted sequence of everything
// that makes and frees memory. docs/gpu-metrics keeps the record of a run (GPUSHM_METRICS_RECORD
// names a folder for one).
TEST_F(MetricsTest, BuffersAndANamedOverheadAreWhatTheGpuUses) {
  if (UnderMps()) GTEST_SKIP() << "a server of MPS has memory that is no process's";
  const char* const folder = std::getenv("GPUSHM_METRICS_RECORD");
  const auto keep = [&](const std::string& name, const std::string& text) {
    if (folder != nullptr) std::ofstream(Concat(folder, "/", name)) << text;
  };
  std::ostringstream record;
  record << "step,buffers_bytes,contexts_bytes,rise_bytes,off_bytes\n";
  uint64_t contexts = 0;
  const auto step = [&](const std::string& name, uint64_t physical) {
    SCOPED_TRACE(name);
    Check(physical);
    const uint64_t rise = Used() - before_bytes_;
    const uint64_t explained = physical + contexts;
    const uint64_t off = rise > explained ? rise - explained : explained - rise;
    record << name << ',' << physical << ',' << contexts << ',' << rise << ',' << off << '\n';
    EXPECT_LE(off, std::max(rise / 100, kHolderBytes))
        << rise << " bytes more in use than at the start, but " << explained << " expected";
  };
  step("nothing", 0);
  Worker first(run());
  ASSERT_EQ(first.Do("create weights " + Megabytes(512)).status, GPUSHM_OK);
  step("a buffer", 512 * kMi);
  ASSERT_EQ(first.Do("create frames " + Megabytes(256)).status, GPUSHM_OK);
  step("two buffers", 768 * kMi);
  const uint64_t no_context = Used();
  Worker second(run());
  ASSERT_EQ(second.Do("attach weights r 0").status, GPUSHM_OK);
  ASSERT_EQ(second.Do("context").status, 0);
  contexts = Used() - no_context;  // Contexts are alike: later ones are compared with this.
  const uint64_t context = contexts;
  step("attached with a context", 768 * kMi);
  Worker third(run());
  ASSERT_EQ(third.Do("attach weights r 0").status, GPUSHM_OK);
  ASSERT_EQ(third.Do("context").status, 0);
  contexts += context;
  step("attached twice", 768 * kMi);
  const Scrape page = Look();
  EXPECT_EQ(Value(page, "gpushm_gpu_memory_saved_by_sharing_bytes"), 2 * 512 * kMi);
  keep("scrape.txt", Scrape::Get(port_, "/metrics"));
  keep("status.json", Scrape::Get(status_port_, "/status.json"));
  ASSERT_EQ(first.Do("replace frames " + Megabytes(128)).status, GPUSHM_OK);
  step("replaced", (512 + 256 + 128) * kMi);  // `first` still has the old generation attached.
  second.Kill();
  contexts -= context;
  step("a process killed", (512 + 256 + 128) * kMi);
  broker_->Kill();
  step("the broker killed", (512 + 256 + 128) * kMi);
  EXPECT_EQ(Value(Look(), "gpushm_kept_bytes"), (512 + 256 + 128) * kMi);
  broker_->Start();
  step("the broker back", (512 + 256 + 128) * kMi);
  first.Kill();
  step("the creator killed", (512 + 128) * kMi);
  ASSERT_EQ(third.Do("delete frames").status, GPUSHM_OK);
  step("deleted", 512 * kMi);
  third.Kill();
  contexts -= context;
  step("nobody left", 512 * kMi);
  // The series disappear within one scrape of the end.
  EXPECT_TRUE(Eventually([&] { return Look().Count("gpushm_attachment_mapped_bytes") == 0; }));
  const Scrape last = Look();
  EXPECT_EQ(last.Count("gpushm_buffer_size_bytes"), 1U);
  EXPECT_EQ(Value(last, "gpushm_container_memory_mapped_bytes"), 0U);
  EXPECT_EQ(Value(last, "gpushm_container_clients"), 0U);
  keep("steps.csv", record.str());
}

TEST_F(MetricsTest, SignalsAreCountedByWhatBecameOfTheirWriters) {
  const auto signals = [&](const char* state) {
    return Look().Sum("gpushm_sync_objects", {{"kind", "signal"}, {"state", state}});
  };
  EXPECT_FALSE(signals("live")) << "there must be no series before the pod has a signal";
  std::optional<Worker> first(run());
  Worker second(run());
  ASSERT_EQ(first->Do("signal open ready w 0").status, GPUSHM_OK);
  ASSERT_EQ(second.Do("signal open done w 0").status, GPUSHM_OK);
  EXPECT_TRUE(Eventually([&] { return signals("live") == 2.0; }));
  first->Kill();
  EXPECT_TRUE(Eventually([&] { return signals("live") == 1.0 && signals("ended") == 1.0; }));
  EXPECT_EQ(signals("unused"), 0.0);
  Check(0);  // Signals use no GPU memory.
}

// Goal: private memory is shown if NVML lists the process, without its buffers; otherwise it is
// absent.
TEST_F(MetricsTest, PrivateBytesAreContextsAndOwnAllocations) {
  Worker worker(run());
  ASSERT_EQ(worker.Do("create weights " + Megabytes(64)).status, GPUSHM_OK);
  EXPECT_FALSE(Fresh().Sum("gpushm_container_memory_private_bytes"));
  const uint64_t before = Used();
  ASSERT_EQ(worker.Do("context").status, 0);
  std::optional<double> told;
  const bool listed = Eventually([&] {
    told = Fresh().Sum("gpushm_container_memory_private_bytes");
    return told.has_value();
  });
  if (!listed && !simulated_) {
    GTEST_SKIP() << "NVML does not list processes by the PIDs of this PID namespace";
  }
  ASSERT_TRUE(listed);
  const uint64_t context = Used() - before;
  EXPECT_NEAR(*told, static_cast<double>(context), static_cast<double>(context) * 0.05);
}

// The container's first process is a launcher without CUDA; one of its workers offers memory.
TEST_F(MetricsTest, OfferedBytesArePrivateToNoProcess) {
  Worker launcher(run());
  ASSERT_EQ(launcher.Do("create weights " + Megabytes(64)).status, GPUSHM_OK);
  Check(64 * kMi);
  Worker worker(run());
  ASSERT_EQ(worker.Do("attach weights r 0").status, GPUSHM_OK);
  const uint64_t before = Used();
  ASSERT_EQ(worker.Do("context").status, 0);
  if (!Eventually([&] { return Fresh().Sum("gpushm_container_memory_private_bytes"); })) {
    GTEST_SKIP() << "NVML does not list processes by the PIDs of this PID namespace";
  }
  const auto context = static_cast<double>(Used() - before);
  ASSERT_EQ(worker.Do("offer mine " + Megabytes(256) + " 7 vmm").status, GPUSHM_OK);
  Check(320 * kMi);
  EXPECT_NEAR(Fresh().Sum("gpushm_container_memory_private_bytes").value_or(0), context,
              context * 0.05);
}

TEST_F(MetricsTest, StatusShowsTheSame) {
  Worker worker(run());
  ASSERT_EQ(worker.Do("create weights " + Megabytes(64)).status, GPUSHM_OK);
  Check(64 * kMi);
  EXPECT_EQ(Scrape::Get(probes_port_, "/healthz"), "ok\n");
  EXPECT_EQ(Scrape::Get(probes_port_, "/readyz"), "ok\n");
  EXPECT_THAT(Scrape::Get(status_port_, "/status.json"),
              ::testing::HasSubstr("\"name\":\"weights\",\"state\":\"ready\""));
}

}  // namespace
}  // namespace gpushm::integration
