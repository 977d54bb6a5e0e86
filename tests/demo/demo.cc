// gpushm-demo: isolated processes use one copy of a real model's weights in GPU memory, by name.
//
// Starts the real broker with a small YAML file, then one process that loads the model and others
// that attach it, each in namespaces of its own as in containers of a pod; compares every tensor
// with the file; kills one and shows what stays. Exit code 0 only if everything was as it says.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/driver/cuda_api.h"
#include "runtime/driver/device.h"
#include "runtime/driver/nvml_api.h"
#include "runtime/include/gpushm/gpushm.h"
#include "tests/demo/isolated.h"
#include "tests/demo/model.h"
#include "tests/demo/report.h"
#include "tests/demo/worker.h"

namespace gpushm::demo {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kStepMs = 60'000;
constexpr char kLoader[] = "loader";
constexpr char kOperator[] = "operator";

struct Options {
  std::string file;
  int servers = 2;
  bool simulated = false;
  bool keep = false;
};

struct Driver {
  std::string folder;  // Empty: the system's.
  bool simulated = false;
  DeviceInfo device;
};

struct Member {
  std::string name;
  std::optional<Isolated> process;
  json report;
};

fs::path OwnFolder() { return fs::read_symlink("/proc/self/exe").parent_path(); }

Result<DeviceInfo> FirstDevice(const std::string& folder) {
  const Result<const CudaApi*> api = CudaApi::Load(folder);
  if (!api) return std::unexpected(api.error());
  const Result<std::vector<DeviceInfo>> devices = ListDevices(**api);
  if (!devices) return std::unexpected(devices.error());
  if (devices->empty()) return Fail(Code::kNotFound, "no GPU");
  return devices->front();
}

// A real GPU if there is one; else the simulated driver beside this program.
Result<Driver> ChooseDriver(const Options& options, const fs::path& work) {
  Driver driver;
  driver.folder = DriverFolderFromEnvironment();
  if (!options.simulated) {
    if (auto device = FirstDevice(driver.folder); device) {
      driver.device = *device;
      const Result<const CudaApi*> api = CudaApi::Load(driver.folder);
      driver.simulated = (*api)->simulated();
      return driver;
    }
  }
  driver.folder = (OwnFolder().parent_path() / "driver-sim").string();
  driver.simulated = true;
  setenv("GPUSHM_SIM_DIR", (work / "gpu").c_str(), 0);
  setenv("GPUSHM_DRIVER", driver.folder.c_str(), 1);
  const Result<DeviceInfo> device = FirstDevice(driver.folder);
  if (!device) return std::unexpected(device.error().WithContext("the simulated driver"));
  driver.device = *device;
  return driver;
}

uint64_t UsedOnCard(const Driver& driver) {
  const Result<const NvmlApi*> nvml = NvmlApi::Load(driver.folder);
  if (!nvml) return 0;
  nvmlDevice_t device{};
  nvmlMemory_t memory{};
  if ((*nvml)->nvmlDeviceGetHandleByUUID(driver.device.uuid.ToString().c_str(), &device) !=
          NVML_SUCCESS ||
      (*nvml)->nvmlDeviceGetMemoryInfo(device, &memory) != NVML_SUCCESS) {
    return 0;
  }
  return memory.used;
}

// The broker as a child process, its log in a file.
class BrokerProcess {
 public:
  BrokerProcess(const fs::path& config, const fs::path& log) {
    pid_ = fork();
    if (pid_ != 0) return;
    const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(out, STDERR_FILENO);
    dup2(out, STDOUT_FILENO);
    const std::string program = (OwnFolder() / "gpushm-broker").string();
    execl(program.c_str(), "gpushm-broker", "--config", config.c_str(), nullptr);
    _exit(127);
  }
  BrokerProcess(const BrokerProcess&) = delete;
  BrokerProcess& operator=(const BrokerProcess&) = delete;
  ~BrokerProcess() {
    if (pid_ <= 0) return;
    kill(pid_, SIGTERM);
    const Deadline deadline = Deadline::AfterMs(5000);
    while (waitpid(pid_, nullptr, WNOHANG) == 0) {
      if (deadline.Passed()) kill(pid_, SIGKILL);
      usleep(1000);
    }
  }

 private:
  pid_t pid_;
};

class Demo {
 public:
  Demo(Options options, fs::path work) : options_(std::move(options)), work_(std::move(work)) {}
  ~Demo() { gpushm_close(client_); }
  Demo(const Demo&) = delete;
  Demo& operator=(const Demo&) = delete;

  Result<void> Run() {
    const Result<Model> model = Model::Open(options_.file);
    if (!model) return std::unexpected(model.error());
    model_hash_ = Hash(model->bytes());
    model_bytes_ = model->bytes().size();
    const Result<Driver> driver = ChooseDriver(options_, work_);
    if (!driver) return std::unexpected(driver.error());
    driver_ = *driver;
    Introduce(*model);
    used_before_ = UsedOnCard(driver_);
    if (auto r = StartBroker(); !r) return r;
    if (auto r = StartMembers(); !r) return r;
    if (auto r = ShowMembers(); !r) return r;
    ShowCosts();
    return KillAndReturn();
  }

 private:
  void Introduce(const Model& model) const {
    std::cout << "gpushm demo\n\n  GPU    " << driver_.device.name << ", "
              << driver_.device.uuid.ToString() << "\n  model  " << options_.file << ", "
              << Bytes(model_bytes_) << ", " << model.tensors().size() << " tensors\n";
    if (driver_.simulated) {
      std::cout
          << "  No GPU here: the driver is SIMULATED. What is shared with whom is real, times "
             "are not a GPU's.\n";
    }
  }

  Result<void> StartBroker() {
    const fs::path config = work_ / "broker.yaml";
    std::ofstream out(config);
    out << "annotations:\n  buffers.gpushm.io/weights: {size: \"" << model_bytes_
        << "\", writers: [" << kLoader << "], loads: true}\ncontainers: [" << kOperator << ", "
        << kLoader;
    for (int i = 1; i <= options_.servers; ++i) out << ", server-" << i;
    out << "]\nfolder: " << (work_ / "run").string() << "\ngpu: " << driver_.device.device << "\n";
    out.close();
    std::cout
        << "\n  $ gpushm-broker --config broker.yaml      # as annotations of a pod would say\n";
    std::ifstream in(config);
    for (std::string line; std::getline(in, line);) std::cout << "      " << line << "\n";
    broker_.emplace(config, work_ / "broker.log");

    gpushm_open_options open;
    GPUSHM_INIT(&open);
    const std::string folder = (work_ / "run" / kOperator).string();
    open.folder = folder.c_str();
    open.timeout_ms = kStepMs;
    if (gpushm_open(&open, &client_) != GPUSHM_OK) return Failed();
    return {};
  }

  Result<void> StartMember(Member* member, bool loads) {
    const fs::path view = work_ / "view";
    fs::create_directories(view);
    std::vector<std::string> arguments = {"worker", "--folder", view.string(), "--file",
                                          options_.file};
    if (!driver_.folder.empty()) arguments.insert(arguments.end(), {"--driver", driver_.folder});
    if (loads) arguments.push_back("--loads");
    auto started =
        Isolated::Start(arguments, (work_ / "run" / member->name).string(), view.string());
    if (!started) return std::unexpected(started.error());
    member->process = std::move(*started);
    return {};
  }

  Result<void> HearMember(Member* member) {
    const Result<std::string> line = member->process->Hear(Deadline::AfterMs(2 * kStepMs));
    if (!line) return std::unexpected(line.error().WithContext(member->name));
    member->report = json::parse(*line, nullptr, false);
    if (!member->report.is_object()) {
      return Fail(Code::kInternal, Concat(member->name, " said: ", *line));
    }
    if (member->report.contains("error")) {
      return Fail(Code::kInternal,
                  Concat(member->name, ": ", member->report["error"].get<std::string>()));
    }
    return {};
  }

  // The servers start first: they wait for the weights, as replicas of a deployment would.
  Result<void> StartMembers() {
    members_.push_back(Member{kLoader, std::nullopt, {}});
    for (int i = 1; i <= options_.servers; ++i) {
      members_.push_back(Member{Concat("server-", i), std::nullopt, {}});
    }
    for (size_t i = members_.size(); i-- > 0;) {
      if (auto r = StartMember(&members_[i], i == 0); !r) return r;
    }
    for (Member& member : members_) {
      if (auto r = HearMember(&member); !r) return r;
    }
    return {};
  }

  Result<void> ShowMembers() {
    std::vector<std::vector<std::string>> rows = {
        {"container", "PID", "pid ns", "mnt ns", "ipc ns", "net ns", "tensors equal", "hash"}};
    bool good = true;
    for (const Member& member : members_) {
      const json& r = member.report;
      const auto ns = [&](const char* kind) {
        return std::to_string(r["ns"][kind].get<uint64_t>());
      };
      const auto equal = r["tensors_equal"].get<size_t>();
      const auto all = r["tensors"].get<size_t>();
      const auto hash = r["hash"].get<uint64_t>();
      good = good && equal == all && hash == model_hash_;
      rows.push_back({member.name, std::to_string(r["pid"].get<int>()), ns("pid"), ns("mnt"),
                      ns("ipc"), ns("net"), Concat(equal, " of ", all), Hex(hash)});
    }
    rows.push_back({"(the file)", "", "", "", "", "", "", Hex(model_hash_)});
    std::cout << "\n" << Table(rows);
    if (good) return {};
    return Fail(Code::kCorrupt, "what a process sees is not what the file holds");
  }

  void ShowCosts() const {
    gpushm_broker_info broker;
    GPUSHM_INIT(&broker);
    gpushm_broker(client_, &broker);
    uint64_t mapped = 0;
    for (const Member& member : members_) mapped += member.report["mapped_bytes"].get<uint64_t>();
    const uint64_t saved = mapped - std::min(mapped, broker.used_bytes);
    std::cout << "\n"
              << Table({{"bytes", ""},
                        {"on the card for the model, once", Bytes(broker.used_bytes)},
                        {Concat("mapped by the ", members_.size(), " processes together"),
                         Bytes(mapped)},
                        {"saved by sharing", Bytes(saved)},
                        {"used on the card before", Bytes(used_before_)},
                        {"used on the card now, contexts of the processes included",
                         Bytes(UsedOnCard(driver_))}});
    std::vector<std::vector<std::string>> rows = {
        {"container", "attach (first of the process)", "attach (median)", "attach again while held",
         "staged copy of the same bytes", "copy : attach"}};
    for (const Member& member : members_) {
      const json& r = member.report;
      if (!r.contains("attach_us")) continue;
      const double attach = r["attach_us"].get<double>();
      const double staged = r["staged_us"].get<double>();
      rows.push_back({member.name, Microseconds(r["attach_first_us"].get<double>()),
                      Microseconds(attach), Microseconds(r["attach_again_us"].get<double>()),
                      Microseconds(staged), Ratio(staged / attach)});
    }
    std::cout << "\n" << Table(rows);
    if (driver_.simulated) {
      std::cout << "  (simulated driver: these are not a GPU's times; a run on an H200 is in "
                   "docs/benchmarks)\n";
    }
  }

  Result<size_t> LeasesOf(const std::string& container) const {
    std::array<gpushm_holder, 64> holders{};
    for (gpushm_holder& holder : holders) GPUSHM_INIT(&holder);
    size_t count = 0;
    if (gpushm_holders(client_, "weights", holders.data(), holders.size(), &count) != GPUSHM_OK) {
      return Failed();
    }
    size_t leases = 0;
    for (size_t i = 0; i < std::min(count, holders.size()); ++i) {
      if (container == holders[i].container) ++leases;
    }
    return leases;
  }

  Result<void> KillAndReturn() {
    Member& victim = members_.back();
    const Result<size_t> held = LeasesOf(victim.name);
    if (!held) return std::unexpected(held.error());
    if (*held == 0) return Fail(Code::kInternal, Concat(victim.name, " holds no lease"));
    std::cout << "\n  " << victim.name << " holds " << *held
              << " lease(s). Killing it with SIGKILL ...\n";
    const int64_t killed_ns = MonotonicNs();
    victim.process->Kill();
    const Deadline deadline = Deadline::AfterMs(kStepMs);
    for (;;) {
      const Result<size_t> left = LeasesOf(victim.name);
      if (!left) return std::unexpected(left.error());
      if (*left == 0) break;
      if (deadline.Passed()) return Fail(Code::kTimeout, "its leases did not end");
    }
    std::cout << "  its leases ended after "
              << Microseconds(static_cast<double>(MonotonicNs() - killed_ns) / 1000)
              << "; nobody loaded anything again. Starting it anew ...\n";
    if (auto r = StartMember(&victim, false); !r) return r;
    if (auto r = HearMember(&victim); !r) return r;
    if (victim.report["hash"].get<uint64_t>() != model_hash_) {
      return Fail(Code::kCorrupt, "the restarted process sees other bytes");
    }
    std::cout << "  " << victim.name << " is back, attached in "
              << Microseconds(victim.report["attach_first_us"].get<double>())
              << " and sees the same bytes: " << Hex(model_hash_) << "\n";
    for (Member& member : members_) {
      if (auto r = member.process->Say("end"); !r) return r;
      const Result<int> code = member.process->Wait(Deadline::AfterMs(kStepMs));
      if (!code) return std::unexpected(code.error());
      if (*code != 0) return Fail(Code::kInternal, Concat(member.name, " ended with ", *code));
    }
    std::cout << "\n  All as it should be.\n";
    return {};
  }

  static std::unexpected<Status> Failed() {
    const gpushm_error* const error = gpushm_last_error();
    return Fail(static_cast<Code>(error->status), error->what, error->remedy);
  }

  Options options_;
  fs::path work_;
  Driver driver_;
  uint64_t model_hash_ = 0;
  uint64_t model_bytes_ = 0;
  uint64_t used_before_ = 0;
  std::optional<BrokerProcess> broker_;
  gpushm_client* client_ = nullptr;
  std::vector<Member> members_;
};

int RunDemo(const Options& options) {
  std::string name = (fs::temp_directory_path() / "gpushm-demo-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    std::cerr << "gpushm-demo: no temporary folder at " << name << "\n";
    return 1;
  }
  const fs::path work = name;
  fs::permissions(work, fs::perms(0755));
  Result<void> result;
  {
    Demo demo(options, work);
    result = demo.Run();
  }
  std::cout.flush();
  if (!result) {
    std::cerr << "\ngpushm-demo: " << result.error().ToString() << "\n";
    std::ifstream log(work / "broker.log");
    for (std::string line; std::getline(log, line);) std::cerr << "  broker: " << line << "\n";
  }
  if (options.keep) {
    std::cout << "  kept: " << work.string() << "\n";
  } else {
    std::error_code ignored;
    fs::remove_all(work, ignored);
  }
  return result ? 0 : 1;
}

}  // namespace
}  // namespace gpushm::demo

int main(int argc, char** argv) try {
  using namespace gpushm::demo;
  CLI::App app("Isolated processes use one copy of a model's weights in GPU memory, by name.");
  Options options;
  app.add_option("--file", options.file, "Model file to load (safetensors, or any other file)");
  app.add_option("--servers", options.servers, "Processes that attach what one loaded")
      ->check(CLI::Range(1, 16));
  app.add_flag("--simulated", options.simulated, "Use the simulated driver though there is a GPU");
  app.add_flag("--keep", options.keep, "Keep the broker's folder and log");
  WorkerOptions worker;
  CLI::App* const work =
      app.add_subcommand("worker", "A process of the demo; started by it")->group("");
  work->add_option("--folder", worker.folder)->required();
  work->add_option("--file", worker.file)->required();
  work->add_option("--driver", worker.driver);
  work->add_flag("--loads", worker.loads);
  CLI11_PARSE(app, argc, argv);
  if (work->parsed()) return RunWorker(worker);
  if (options.file.empty()) {
    std::cerr << "gpushm-demo: --file FILE is needed; ./run demo gives a model's\n";
    return 2;
  }
  options.file = std::filesystem::absolute(options.file).string();
  return RunDemo(options);
} catch (const std::exception& error) {
  std::cerr << "gpushm-demo: " << error.what() << "\n";
  return 1;
}
