#include "tests/bench/harness.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <thread>

#include "platform/base/testing.h"
#include "platform/driver/nvml_api.h"

namespace gpushm::bench {
namespace {

namespace fs = std::filesystem;

Machine machine;
std::optional<PrimaryContext> primary_context;

Result<void> LookAt(const std::string& driver_folder) {
  const Result<const CudaApi*> api = CudaApi::Load(driver_folder);
  if (!api) return std::unexpected(api.error());
  Result<std::vector<DeviceInfo>> devices = ListDevices(**api);
  if (!devices) return std::unexpected(devices.error());
  if (devices->empty()) return Fail(Code::kNotFound, "the driver lists no GPU");
  machine.api = *api;
  machine.device = devices->front();
  machine.simulated = (*api)->simulated();
  return {};
}

// GPUSHM_DRIVER if it is set, otherwise a real GPU, otherwise the simulated driver next to this
// program.
Result<void> ChooseDriver() {
  setenv("GPUSHM_SIM_DIR", (machine.work / "gpu").c_str(), 0);
  const std::string given = DriverFolderFromEnvironment();
  if (auto r = LookAt(given); r || !given.empty()) return r;
  const std::string simulated = (OwnFolder().parent_path() / "driver-sim").string();
  setenv("GPUSHM_DRIVER", simulated.c_str(), 1);
  return LookAt(simulated);
}

std::string ProcessorName() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::string DriverVersion() {
  const Result<const NvmlApi*> nvml = NvmlApi::Load(DriverFolderFromEnvironment());
  std::array<char, 96> text{};
  if (!nvml || (*nvml)->nvmlSystemGetDriverVersion(text.data(), text.size()) != NVML_SUCCESS) {
    return "unknown";
  }
  return text.data();
}

int RunRole(int argc, char** argv, const std::map<std::string, Role>& roles) {
  const auto role = roles.find(argv[2]);
  if (role == roles.end() || argc < 4) return 2;
  Channel parent{UniqueFd(std::atoi(argv[3]))};
  try {
    role->second(parent, std::vector<std::string>(argv + 4, argv + argc));
    return 0;
  } catch (const Failure& failure) {
    parent.Say(Concat("failed: ", failure.status.ToString()));
    return 1;
  }
}

int RunBenchmarks(int argc, char** argv, const std::function<void()>& register_rows) {
  for (const auto& [name, value] : MachineFacts()) benchmark::AddCustomContext(name, value);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  register_rows();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace

const Machine& ThisMachine() { return machine; }

std::vector<std::pair<std::string, std::string>> MachineFacts() {
  utsname kernel{};
  uname(&kernel);
  const std::string release = kernel.release;  // Without the name that its builder gave it.
  const int cuda = machine.api->driver_version();
  return {
      {"machine", Concat(ProcessorName(), ", ", std::thread::hardware_concurrency(), " CPUs")},
      {"kernel", Concat(kernel.sysname, " ", release.substr(0, release.find('-')))},
      {"gpu", machine.device.name},
      {"gpu_memory", Concat(machine.device.total_bytes / kMiB, " MiB")},
      {"driver", DriverVersion()},
      {"cuda", Concat(cuda / 1000, ".", cuda % 1000 / 10)},
      {"simulated", machine.simulated ? "yes" : "no"},
      {"gpushm", Concat(gpushm_version())},
  };
}

void FindDriver() { Must(LookAt(DriverFolderFromEnvironment())); }

bool HasContext() { return primary_context.has_value(); }

void NeedContext() {
  if (HasContext()) return;
  primary_context.emplace(Must(PrimaryContext::Retain(*machine.api, machine.device.device)));
  Must(primary_context->MakeCurrent());
}

void Row(const std::string& name, int64_t iterations, Body body) {
  benchmark::internal::Benchmark* row =
      benchmark::RegisterBenchmark(name.c_str(), [body = std::move(body)](benchmark::State& state) {
        try {
          body(state);
        } catch (const Failure& failure) {
          state.SkipWithError(failure.status.ToString().c_str());
        }
      });
  row->UseManualTime()->Unit(benchmark::kMicrosecond);
  if (iterations > 0) row->Iterations(iterations);
}

void Repeat(benchmark::State& state, const std::function<double()>& took_ns) {
  Samples samples;
  for (auto _ : state) {
    const double took = took_ns();
    samples.Add(took);
    state.SetIterationTime(took / 1e9);
  }
  Show(state, Ours{samples});
}

void InTurns(benchmark::State& state, const std::function<double()>& ours_ns,
             const std::function<double()>& baseline_ns) {
  Samples ours;
  Samples baseline;
  bool ours_first = true;
  for (auto _ : state) {
    for (const bool now_ours : {ours_first, !ours_first}) {
      const double took = now_ours ? ours_ns() : baseline_ns();
      (now_ours ? ours : baseline).Add(took);
      if (now_ours) state.SetIterationTime(took / 1e9);
    }
    ours_first = !ours_first;
  }
  Show(state, Ours{ours}, Baseline{baseline});
}

std::string SizeName(uint64_t bytes) {
  return bytes >= kGiB ? Concat(bytes / kGiB, "GiB") : Concat(bytes / kMiB, "MiB");
}

void Check(gpushm_status status, std::string_view what) {
  if (status == GPUSHM_OK) return;
  const gpushm_error* error = gpushm_last_error();
  throw Failure(Status(static_cast<Code>(status), Concat(what, ": ", error->what), error->remedy));
}

Connection Connection::Open(const fs::path& folder, int64_t timeout_ms) {
  gpushm_open_options options;
  GPUSHM_INIT(&options);
  options.folder = folder.c_str();
  options.timeout_ms = timeout_ms;
  gpushm_client* client = nullptr;
  Check(gpushm_open(&options, &client), "gpushm_open");
  return Connection(client);
}

Connection Connection::To(const Broker& broker) {
  constexpr int64_t kTryMs = 2000;
  const Deadline deadline = Deadline::AfterMs(kStepMs);
  for (;;) {
    try {
      return Open(broker.folder(), kTryMs);
    } catch (const Failure&) {
      if (broker.Ended()) throw Failure(Code::kUnavailable, broker.LogTail());
      if (deadline.Passed()) throw;
    }
  }
}

int RunOnMachine(int argc, char** argv, const std::map<std::string, Role>& roles,
                 const std::function<int()>& body) {
  if (argc > 2 && std::string_view(argv[1]) == "--role") return RunRole(argc, argv, roles);
  const testing::TempFolder folder;
  machine.work = folder.path();
  int code = 1;
  try {
    Must(ChooseDriver());
    code = body();
  } catch (const Failure& failure) {
    std::fprintf(stderr, "%s\n", failure.status.ToString().c_str());
  }
  primary_context.reset();
  return code;
}

int Main(int argc, char** argv, const std::map<std::string, Role>& roles,
         const std::function<void()>& register_rows) {
  return RunOnMachine(argc, argv, roles, [&] { return RunBenchmarks(argc, argv, register_rows); });
}

}  // namespace gpushm::bench
