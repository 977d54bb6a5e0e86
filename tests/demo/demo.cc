// gpushm-demo: isolated processes use one copy of a real model's weights in GPU memory, by name.
//
// It starts the real broker with a small YAML file, one process that loads the model, and others
// that attach it. Each runs in namespaces of its own, like a container of a pod. It compares every
// tensor with the file, kills one process and then the broker, and shows what remains. The exit
// code is 0 only if every check passed.
#include <poll.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "platform/base/clock.h"
#include "platform/base/testing/must.h"
#include "platform/driver/cuda_api.h"
#include "platform/driver/device.h"
#include "platform/driver/nvml_api.h"
#include "runtime/include/gpushm/gpushm.h"
#include "tests/demo/daemon_process.h"
#include "tests/demo/isolated.h"
#include "tests/demo/model.h"
#include "tests/demo/node_plugin.h"
#include "tests/demo/report.h"
#include "tests/demo/worker.h"

namespace gpushm::demo {
namespace {

namespace fs = std::filesystem;
using gpushm::testing::Failure;
using gpushm::testing::Must;
using nlohmann::json;

constexpr int kStepMs = 60'000;
constexpr char kLoader[] = "loader";
constexpr char kOperator[] = "operator";
constexpr char kWeights[] = "weights";

struct Options {
  std::string file;
  int servers = 2;
  bool simulated = false;
  bool plugin = true;
  bool keep = false;
};

// The lease's number, the client's number, the container, the generation.
using Lease = std::tuple<uint64_t, uint64_t, std::string, uint64_t>;

struct Driver {
  std::string folder;  // Empty: the system's driver.
  bool simulated = false;
  DeviceInfo device;
};

struct Member {
  std::string name;
  std::optional<Isolated> process;
  json report;
};

Result<DeviceInfo> FirstDevice(const std::string& folder) {
  const Result<const CudaApi*> api = CudaApi::Load(folder);
  if (!api) return std::unexpected(api.error());
  const Result<std::vector<DeviceInfo>> devices = ListDevices(**api);
  if (!devices) return std::unexpected(devices.error());
  if (devices->empty()) return Fail(Code::kNotFound, "the driver lists no GPU");
  return devices->front();
}

// Uses a real GPU if there is one, otherwise the simulated driver next to this program.
Driver ChooseDriver(const Options& options, const fs::path& work) {
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
  driver.folder = fs::path(OwnFolder()).parent_path() / "driver-sim";
  driver.simulated = true;
  setenv("GPUSHM_SIM_DIR", (work / "gpu").c_str(), 0);
  setenv("GPUSHM_DRIVER", driver.folder.c_str(), 1);
  driver.device = Must(FirstDevice(driver.folder));
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

class Demo {
 public:
  Demo(Options options, fs::path work) : options_(std::move(options)), work_(std::move(work)) {}
  ~Demo() { gpushm_close(client_); }
  Demo(const Demo&) = delete;
  Demo& operator=(const Demo&) = delete;

  void Run() {
    const Model model = Must(Model::Open(options_.file));
    model_hash_ = Hash(model.bytes());
    model_bytes_ = model.bytes().size();
    driver_ = ChooseDriver(options_, work_);
    Introduce(model);
    used_before_ = UsedOnCard(driver_);
    StartPlugin();
    OpenBroker();
    StartMembers();
    ShowMembers();
    ShowCosts();
    KillAndReturn();
    if (plugin_) KillBroker();
    EndMembers();
    std::cout << "\n  All checks passed.\n";
  }

 private:
  void Introduce(const Model& model) const {
    std::cout << "gpushm demo\n\n  GPU    " << driver_.device.name << ", "
              << driver_.device.uuid.ToString() << "\n  model  " << options_.file << ", "
              << Bytes(model_bytes_) << ", " << model.tensors().size() << " tensors\n";
    if (driver_.simulated) {
      std::cout << "  No GPU was found, so the driver is SIMULATED. "
                   "Sharing is real, but the times are not a GPU's.\n";
    }
  }

  // Without the plugin, a broker's memory ends with the broker and its clients. All the rest is the
  // same.
  void StartPlugin() {
    if (!options_.plugin) return Skip("--no-plugin");
    NodePlugin::Settings settings;
    settings.folder = work_ / "plugin";
    settings.gpu = driver_.device.uuid.ToString();
    settings.driver = driver_.simulated && !driver_.folder.empty() ? driver_.folder : "auto";
    settings.memory_bytes = RoundUp(model_bytes_, driver_.device.granularity);
    settings.timeout_ms = kStepMs;
    Result<NodePlugin> started = NodePlugin::Start(settings);
    if (!started) return Skip(started.error().ToString());
    plugin_ = std::move(*started);
    std::cout << "\n  $ gpushm-plugin serve --config plugin.yaml   # once on each node\n";
    PrintFile(work_ / "plugin" / "plugin.yaml");
  }

  void Skip(const std::string& why) const {
    std::cout << "\n  SKIPPED: no plugin runs, so the broker is not killed: " << why << "\n";
  }

  static void PrintFile(const fs::path& path) {
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) std::cout << "      " << line << "\n";
  }

  void StartBroker() {
    std::vector<std::string> arguments = {"--config", work_ / "broker.yaml"};
    if (plugin_) arguments.insert(arguments.end(), {"--link", plugin_->link_folder()});
    if (!plugin_) arguments.insert(arguments.end(), {"--link", "none"});
    broker_.emplace("gpushm-broker", arguments, work_ / "broker.log");
  }

  void OpenBroker() {
    const fs::path config = work_ / "broker.yaml";
    std::ofstream out(config);
    out << "annotations:\n  buffers.gpushm.io/weights: {size: \"" << model_bytes_
        << "\", writers: [" << kLoader << "], loads: true}\ncontainers: [" << kOperator << ", "
        << kLoader;
    for (int i = 1; i <= options_.servers + 1; ++i) out << ", server-" << i;
    out << "]\nfolder: " << (work_ / "run").string() << "\ngpu: " << driver_.device.device << "\n";
    out.close();
    std::cout << "\n  $ gpushm-broker --config broker.yaml"
              << (plugin_ ? Concat(" --link ", plugin_->link_folder()) : "")
              << "      # as a pod's annotations would declare\n";
    PrintFile(config);
    StartBroker();

    gpushm_open_options open;
    GPUSHM_INIT(&open);
    const std::string folder = (work_ / "run" / kOperator).string();
    open.folder = folder.c_str();
    open.timeout_ms = kStepMs;
    if (gpushm_open(&open, &client_) != GPUSHM_OK) throw Failure(LastError());
  }

  void StartMember(Member* member, bool loads) {
    const fs::path view = work_ / "view";
    fs::create_directories(view);
    std::vector<std::string> arguments = {"worker", "--folder", view.string(), "--file",
                                          options_.file};
    if (!driver_.folder.empty()) arguments.insert(arguments.end(), {"--driver", driver_.folder});
    if (loads) arguments.push_back("--loads");
    member->process =
        Must(Isolated::Start(arguments, (work_ / "run" / member->name).string(), view.string()));
  }

  void HearMember(Member* member) {
    const Result<std::string> line = member->process->Hear(Deadline::AfterMs(2 * kStepMs));
    if (!line) throw Failure(line.error().WithContext(member->name));
    member->report = json::parse(*line, nullptr, false);
    if (!member->report.is_object()) {
      throw Failure(Code::kInternal, Concat(member->name, " printed an unexpected line: ", *line));
    }
    if (member->report.contains("error")) {
      throw Failure(Code::kInternal,
                    Concat(member->name, ": ", member->report["error"].get<std::string>()));
    }
  }

  // The servers start first: they wait for the weights, like the replicas of a deployment.
  void StartMembers() {
    members_.push_back(Member{kLoader, std::nullopt, {}});
    for (int i = 1; i <= options_.servers; ++i) {
      members_.push_back(Member{Concat("server-", i), std::nullopt, {}});
    }
    for (size_t i = members_.size(); i-- > 0;) StartMember(&members_[i], i == 0);
    for (Member& member : members_) HearMember(&member);
  }

  void ShowMembers() {
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
    if (!good) throw Failure(Code::kCorrupt, "a process sees other bytes than the file has");
  }

  void ShowCosts() const {
    gpushm_broker_info broker;
    GPUSHM_INIT(&broker);
    gpushm_broker_get_info(client_, &broker);
    uint64_t mapped = 0;
    for (const Member& member : members_) mapped += member.report["mapped_bytes"].get<uint64_t>();
    const uint64_t saved = mapped - std::min(mapped, broker.used_bytes);
    std::cout << "\n"
              << Table({{"bytes", ""},
                        {"GPU memory for the model, allocated once", Bytes(broker.used_bytes)},
                        {Concat("mapped by the ", members_.size(), " processes in total"),
                         Bytes(mapped)},
                        {"saved by sharing", Bytes(saved)},
                        {"used on the GPU before the demo", Bytes(used_before_)},
                        {"used on the GPU now, including the processes' contexts",
                         Bytes(UsedOnCard(driver_))}});
    std::vector<std::vector<std::string>> rows = {{"container", "first attach", "attach (median)",
                                                   "attach while attached",
                                                   "copy through host memory", "copy / attach"}};
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
      std::cout << "  (These times come from the simulated driver. "
                   "docs/benchmarks has a run on an H200.)\n";
    }
  }

  std::vector<Lease> Leases() const {
    std::array<gpushm_holder, 64> holders{};
    for (gpushm_holder& holder : holders) GPUSHM_INIT(&holder);
    size_t count = 0;
    if (gpushm_list_holders(client_, kWeights, holders.data(), holders.size(), &count) !=
        GPUSHM_OK) {
      throw Failure(LastError());
    }
    std::vector<Lease> leases;
    for (size_t i = 0; i < std::min(count, holders.size()); ++i) {
      leases.emplace_back(holders[i].lease_id, holders[i].client_id, holders[i].container,
                          holders[i].generation);
    }
    std::sort(leases.begin(), leases.end());
    return leases;
  }

  size_t LeasesOf(const std::string& container) const {
    const std::vector<Lease> leases = Leases();
    return static_cast<size_t>(std::ranges::count(
        leases, container, [](const Lease& lease) { return std::get<2>(lease); }));
  }

  void KillAndReturn() {
    Member& victim = members_.back();
    const size_t held = LeasesOf(victim.name);
    if (held == 0) throw Failure(Code::kInternal, Concat(victim.name, " holds no lease"));
    std::cout << "\n  " << victim.name << " holds " << held
              << " lease(s). Killing it with SIGKILL ...\n";
    const int64_t killed_ns = MonotonicNs();
    victim.process->Kill();
    const Deadline deadline = Deadline::AfterMs(kStepMs);
    for (;;) {
      const size_t left = LeasesOf(victim.name);
      if (left == 0) break;
      if (deadline.Passed())
        throw Failure(Code::kTimeout, "the killed process's leases did not end in time");
    }
    std::cout << "  Its leases ended after "
              << Microseconds(static_cast<double>(MonotonicNs() - killed_ns) / 1000)
              << "; no process had to load the model again. Starting it again ...\n";
    StartMember(&victim, false);
    HearMember(&victim);
    if (victim.report["hash"].get<uint64_t>() != model_hash_) {
      throw Failure(Code::kCorrupt, "the restarted process sees other bytes than the file has");
    }
    std::cout << "  " << victim.name << " is back: it attached in "
              << Microseconds(victim.report["attach_first_us"].get<double>())
              << " and sees the same bytes: " << Hex(model_hash_) << "\n";
  }

  // Every member must see the file's bytes at this moment.
  void LookAtAll(const char* when) {
    for (Member& member : members_) Must(member.process->Say(kLookWord));
    for (Member& member : members_) {
      HearMember(&member);
      if (member.report["hash"].get<uint64_t>() != model_hash_) {
        throw Failure(Code::kCorrupt, Concat(member.name, " sees other bytes ", when));
      }
    }
  }

  // Starts the broker's successor. Returns how long it took to answer.
  int64_t ReturnBroker(uint64_t former_epoch) {
    const int64_t started_ns = MonotonicNs();
    StartBroker();
    const Deadline deadline = Deadline::AfterMs(kStepMs);
    for (;;) {
      gpushm_broker_info info;
      GPUSHM_INIT(&info);
      const gpushm_status status = gpushm_broker_get_info(client_, &info);
      if (status == GPUSHM_OK && info.broker_epoch != former_epoch) break;
      if (!broker_->Running()) throw Failure(Code::kPeerDied, "the new broker ended");
      if (deadline.Passed()) throw Failure(Code::kTimeout, "the new broker does not answer");
      poll(nullptr, 0, 1);
    }
    return MonotonicNs() - started_ns;
  }

  // The members keep what they have mapped in any case. With the plugin, the next broker has it as
  // well. The plugin gives it the name, the generation, the leases and the descriptor of the
  // memory.
  void KillBroker() {
    gpushm_broker_info former;
    GPUSHM_INIT(&former);
    if (gpushm_broker_get_info(client_, &former) != GPUSHM_OK) throw Failure(LastError());
    const std::vector<Lease> before = Leases();
    if (before.empty()) throw Failure(Code::kInternal, "no process holds a lease");
    const uint64_t generation = std::get<3>(before.front());
    std::cout << "\n  The broker (PID " << broker_->pid() << ") has " << before.size()
              << " lease(s). Killing it with SIGKILL ...\n";
    broker_->Kill();
    LookAtAll("without a broker");
    const int64_t took_ns = ReturnBroker(former.broker_epoch);
    const std::vector<Lease> after = Leases();
    if (after != before) {
      throw Failure(Code::kCorrupt, Concat("of ", before.size(), " leases, the new broker has ",
                                           after.size(), ", or different ones"));
    }
    std::cout << "  A new broker (PID " << broker_->pid() << ") answers after "
              << Microseconds(static_cast<double>(took_ns) / 1000)
              << "; no process had to load the model again. "
                 "Starting one more process that attaches ...\n";
    LookAtAll("with the new broker");
    members_.push_back(Member{Concat("server-", options_.servers + 1), std::nullopt, {}});
    StartMember(&members_.back(), false);
    HearMember(&members_.back());
    ShowReturned(generation, after.size(), took_ns);
  }

  void ShowReturned(uint64_t generation, size_t leases, int64_t took_ns) const {
    std::vector<std::vector<std::string>> rows = {
        {"container", "attached", "hash", "generation", "current"}};
    bool good = true;
    for (const Member& member : members_) {
      const json& r = member.report;
      const bool current = r["current"].get<bool>();
      const auto hash = r["hash"].get<uint64_t>();
      const auto held = r["generation"].get<uint64_t>();
      good = good && current && hash == model_hash_ && held == generation;
      const bool is_new = &member == &members_.back();
      rows.push_back({member.name, is_new ? "now" : "before the kill", Hex(hash),
                      std::to_string(held), current ? "yes" : "no"});
    }
    rows.push_back({"(before)", "", Hex(model_hash_), std::to_string(generation), ""});
    std::cout << "\n" << Table(rows);
    if (!good)
      throw Failure(Code::kCorrupt,
                    "with the new broker, the bytes or the generation differ from before");
    std::cout << "\n  broker killed and restarted: same bytes, same generation, " << leases
              << " leases back, " << Microseconds(static_cast<double>(took_ns) / 1000) << "\n";
  }

  void EndMembers() {
    for (Member& member : members_) {
      Must(member.process->Say("end"));
      const int code = Must(member.process->Wait(Deadline::AfterMs(kStepMs)));
      if (code != 0) throw Failure(Code::kInternal, Concat(member.name, " ended with ", code));
    }
  }

  Options options_;
  fs::path work_;
  Driver driver_;
  uint64_t model_hash_ = 0;
  uint64_t model_bytes_ = 0;
  uint64_t used_before_ = 0;
  std::optional<NodePlugin> plugin_;  // Declared first, so that it ends after the broker.
  std::optional<DaemonProcess> broker_;
  gpushm_client* client_ = nullptr;
  std::vector<Member> members_;
};

int RunDemo(const Options& options) {
  std::string name = (fs::temp_directory_path() / "gpushm-demo-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    std::cerr << "gpushm-demo: cannot make a temporary folder from the pattern " << name << "\n";
    return 1;
  }
  const fs::path work = name;
  fs::permissions(work, fs::perms(0755));
  int code = 0;
  try {
    Demo(options, work).Run();
    std::cout.flush();
  } catch (const Failure& failure) {
    code = 1;
    std::cout.flush();
    std::cerr << "\ngpushm-demo: " << failure.status.ToString() << "\n";
    for (const char* const daemon : {"broker", "plugin"}) {
      std::ifstream log(work / Concat(daemon, ".log"));
      for (std::string line; std::getline(log, line);)
        std::cerr << "  " << daemon << ": " << line << "\n";
    }
  }
  if (options.keep) {
    std::cout << "  kept: " << work.string() << "\n";
  } else {
    std::error_code ignored;
    fs::remove_all(work, ignored);
  }
  return code;
}

}  // namespace
}  // namespace gpushm::demo

int main(int argc, char** argv) try {
  using namespace gpushm::demo;
  CLI::App app("Isolated processes use one copy of a model's weights in GPU memory, by name.");
  Options options;
  app.add_option("--file", options.file, "Model file to load (safetensors, or any other file)");
  app.add_option("--servers", options.servers,
                 "Number of processes that attach the model that one process loads")
      ->check(CLI::Range(1, 16));
  app.add_flag("--simulated", options.simulated, "Use the simulated driver even if there is a GPU");
  app.add_flag("!--no-plugin", options.plugin,
               "Run without the node's plugin, and do not kill the broker");
  app.add_flag("--keep", options.keep, "Keep the broker's and the plugin's folders and logs");
  WorkerOptions worker;
  CLI::App* const work =
      app.add_subcommand("worker", "A process of the demo, which the demo starts")->group("");
  work->add_option("--folder", worker.folder)->required();
  work->add_option("--file", worker.file)->required();
  work->add_option("--driver", worker.driver);
  work->add_flag("--loads", worker.loads);
  CLI11_PARSE(app, argc, argv);
  if (work->parsed()) return RunWorker(worker);
  if (options.file.empty()) {
    std::cerr << "gpushm-demo: --file FILE is required; ./run demo uses a real model's file\n";
    return 2;
  }
  options.file = std::filesystem::absolute(options.file).string();
  return RunDemo(options);
} catch (const std::exception& error) {
  std::cerr << "gpushm-demo: " << error.what() << "\n";
  return 1;
}
