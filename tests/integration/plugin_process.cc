// The node's plugin as brokers see it: the real keeper in a separate process, with one allocation
// on a GPU. links/kept contains the numbers of generations and leases that it keeps.
#include <poll.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "platform/base/testing/main.h"
#include "plugin/keeper/keeper.h"

namespace gpushm::integration {
namespace {

// The folder of links, the GPU.
int PluginMain(const std::vector<std::string>& words) {
  if (words.size() != 2) return 1;
  const std::string& links = words[0];
  plugin::keeper::Keeper::Options options;
  options.links_folder = links;
  options.on_link = [](const std::string&, bool) {};
  const char* const simulated_state = std::getenv("GPUSHM_SIM_DIR");
  if (simulated_state != nullptr) options.settings.memory = MemoryKind::Of(simulated_state);
  const auto keeper = plugin::keeper::Keeper::Start(std::move(options));
  mkdir((links + "/m0000").c_str(), 0755);
  const Result<void> opened =
      keeper ? (*keeper)->Open("m0000", {.gpus = {words[1]}, .pool_bytes = uint64_t{128} << 20})
             : std::unexpected(keeper.error());
  if (!opened) {
    std::fprintf(stderr, "plugin: %s\n", opened.error().ToString().c_str());
    return 1;
  }
  for (;;) {
    for (const plugin::keeper::LinkView& view : (*keeper)->Look()) {
      std::ofstream(links + "/kept.new") << view.kept.generations << ' ' << view.kept.leases;
      std::filesystem::rename(links + "/kept.new", links + "/kept");
    }
    poll(nullptr, 0, 2);
  }
}

const testing::TestRole kPluginRole("plugin", PluginMain);

}  // namespace
}  // namespace gpushm::integration
