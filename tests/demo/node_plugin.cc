#include "tests/demo/node_plugin.h"

#include <poll.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "platform/base/clock.h"

namespace gpushm::demo {
namespace {

namespace fs = std::filesystem;

constexpr int kNodeLookEveryMs = 2;
constexpr char kProgram[] = "gpushm-plugin";
constexpr char kAllocation[] = "demo";

// A daemon's last line says why it ended.
std::string LastLine(const std::string& log) {
  std::string last;
  std::ifstream in(log);
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) last = line;
  }
  return last;
}

}  // namespace

Result<NodePlugin> NodePlugin::Start(const Settings& settings) {
  if (access(Concat(ProgramFolder(), "/", kProgram).c_str(), X_OK) != 0) {
    return Fail(Code::kNotFound, Concat("there is no ", kProgram, " in ", ProgramFolder()));
  }
  const fs::path folder = settings.folder;
  for (const char* const part : {"state", "cdi"}) fs::create_directories(folder / part);
  const std::string config = folder / "plugin.yaml";
  std::ofstream(config) << "kubelet: none\n"
                        << settings.monitoring << "allocations: [{name: " << kAllocation
                        << ", memory: " << settings.memory_bytes << "}]\ngpus: [" << settings.gpu
                        << "]\ndriver-root: " << settings.driver
                        << "\nstate-folder: " << (folder / "state").string()
                        << "\ncdi-folder: " << (folder / "cdi").string() << "\n";
  NodePlugin plugin;
  plugin.log_ = folder.string() + ".log";
  const std::string& log = plugin.log_;
  plugin.link_folder_ = folder / "state/links" / kAllocation;
  plugin.process_ = std::make_unique<DaemonProcess>(
      kProgram, std::vector<std::string>{"serve", "--config", config}, log);
  const Deadline deadline = Deadline::AfterMs(settings.timeout_ms);
  while (access((plugin.link_folder_ + "/plugin.sock").c_str(), F_OK) != 0) {
    if (!plugin.process_->Running()) {
      return Fail(Code::kUnavailable, Concat("the plugin ended: ", LastLine(log)));
    }
    if (deadline.Passed()) {
      return Fail(Code::kTimeout, Concat("the plugin did not start in time: ", LastLine(log)));
    }
    poll(nullptr, 0, kNodeLookEveryMs);
  }
  return plugin;
}

}  // namespace gpushm::demo
