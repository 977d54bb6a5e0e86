#include "plugin/testing/plugin_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "platform/base/clock.h"
#include "platform/base/status.h"

namespace gpushm::plugin::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kLookEveryMs = 5;

std::string BuildFolder() { return fs::read_symlink("/proc/self/exe").parent_path().parent_path(); }

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    names.push_back(entry.path().filename());
  }
  return names;
}

}  // namespace

bool WaitUntil(int64_t timeout_ms, const std::function<bool()>& is_so) {
  const Deadline deadline = Deadline::AfterMs(timeout_ms);
  while (!is_so()) {
    if (deadline.Passed()) return false;
    poll(nullptr, 0, kLookEveryMs);
  }
  return true;
}

TestNode::TestNode(Gpus gpus) : gpus_(gpus) {
  for (const char* const folder : {"sim", "cdi", "plugins", "pods", "payload"}) {
    fs::create_directory(folder_ / folder);
  }
  fs::permissions(folder_ / "sim", fs::perms::all);
  std::ofstream(folder_ / "sim/cards.yaml")
      << "gpus:\n- {name: A, memory: 16Gi, uuid: " << kGpuA
      << "}\n- {name: B, memory: 16Gi, uuid: " << kGpuB << "}\n";
  // The content does not matter, because no test runs it.
  std::ofstream(folder_ / "payload/libgpushm.so.0") << "library";
  std::ofstream(folder_ / "payload/gpushmctl") << "#!/bin/sh\n";
}

std::string TestNode::WriteConfig(const std::string& more) const {
  std::string path = folder_ / "plugin.yaml";
  const std::string driver = gpus_ == Gpus::kReal ? "auto" : BuildFolder() + "/driver-sim";
  std::ofstream(path + ".new") << "driver-root: " << driver << "\n"
                               << "state-folder: " << folder_.path() << "/state\n"
                               << "cdi-folder: " << folder_.path() << "/cdi\n"
                               << "kubelet-folder: " << folder_.path() << "/plugins\n"
                               << "pod-resources-socket: " << folder_.path()
                               << "/pods/kubelet.sock\n"
                               // Several tests run in parallel.
                               << (more.find("metrics:") == std::string::npos
                                       ? "metrics: {address: ''}\nstatus: {address: ''}\n"
                                       : "")
                               << more;
  fs::rename(path + ".new", path);
  return path;
}

std::vector<std::string> TestNode::Specs() const {
  std::vector<std::string> names = NamesIn(folder_ / "cdi");
  std::erase(names, "gpushm.io-driver-files.json");  // Belongs to no binding.
  return names;
}
std::vector<std::string> TestNode::Links() const { return NamesIn(folder_ / "state/links"); }

std::string TestNode::GpuOf(const std::string& cdi_name) const {
  for (const std::string& file : Specs()) {
    const auto spec = nlohmann::json::parse(ReadAll(folder_ / ("cdi/" + file)), nullptr, false);
    if (spec.is_discarded()) continue;
    for (const auto& device : spec["devices"]) {
      if (Concat(spec["kind"].get<std::string>(), "=", device["name"].get<std::string>()) !=
          cdi_name) {
        continue;
      }
      for (const auto& variable : device["containerEdits"]["env"]) {
        const auto text = variable.get<std::string>();
        const std::string key = "GPUSHM_SIM_DEVICES=";
        if (text.starts_with(key)) return text.substr(key.size());
      }
    }
  }
  return {};
}

PluginProcess::PluginProcess(const TestNode& node, const std::string& config_path,
                             const std::map<std::string, std::string>& environment,
                             const std::vector<std::string>& arguments)
    : log_path_(node / "plugin.log") {
  const std::string program = BuildFolder() + "/bin/gpushm-plugin";
  const std::string payload = node / "payload";
  const std::string sim = node / "sim";
  const bool simulated = node.gpus() == TestNode::Gpus::kSimulated;
  pid_ = fork();
  if (pid_ != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int log = open(log_path_.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  dup2(log, STDERR_FILENO);
  if (simulated) setenv("GPUSHM_SIM_DIR", sim.c_str(), 1);
  unsetenv("GPUSHM_DRIVER");
  for (const auto& [key, value] : environment) setenv(key.c_str(), value.c_str(), 1);
  std::vector<const char*> all = {program.c_str(),     "serve",     "--config",
                                  config_path.c_str(), "--payload", payload.c_str()};
  for (const std::string& argument : arguments) all.push_back(argument.c_str());
  all.push_back(nullptr);
  execv(program.c_str(), const_cast<char* const*>(all.data()));
  std::perror(program.c_str());
  _exit(127);
}

PluginProcess::~PluginProcess() {
  if (!Running()) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, &status_, 0);
}

void PluginProcess::Signal(int signal) const {
  if (pid_ > 0) kill(pid_, signal);  // kill(-1) would signal every process.
}

bool PluginProcess::Running() {
  if (pid_ > 0 && waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = -1;
  return pid_ > 0;
}

bool PluginProcess::WaitEnd(int64_t timeout_ms) {
  return WaitUntil(timeout_ms, [this] { return !Running(); });
}

std::string PluginProcess::Log() const { return ReadAll(log_path_); }

int PluginProcess::Descriptors() const {
  return static_cast<int>(NamesIn(Concat("/proc/", pid_, "/fd")).size());
}

uint64_t PluginProcess::RssBytes() const {
  std::ifstream status(Concat("/proc/", pid_, "/status"));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoull(line.substr(6)) << 10;
  }
  return 0;
}

}  // namespace gpushm::plugin::testing
