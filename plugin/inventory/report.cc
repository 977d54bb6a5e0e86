#include "plugin/inventory/report.h"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

namespace gpushm::plugin::inventory {
namespace {

std::string MiB(uint64_t bytes) { return Concat(bytes >> 20, "Mi"); }

}  // namespace

std::string Table(const Advertisement& advertisement, const Rules& rules) {
  size_t name_width = 4;
  size_t uuid_width = 4;
  for (const Device& device : advertisement.devices) {
    name_width = std::max(name_width, device.name.size());
    uuid_width = std::max(uuid_width, device.uuid.size());
  }
  std::ostringstream out;
  const auto row = [&](std::string_view index, std::string_view name, std::string_view uuid,
                       std::string_view memory, std::string_view units) {
    out << std::right << std::setw(5) << index << "  " << std::left
        << std::setw(static_cast<int>(name_width)) << name << "  "
        << std::setw(static_cast<int>(uuid_width)) << uuid << "  " << std::right << std::setw(10)
        << memory << "  " << std::setw(5) << units << "\n";
  };
  row("INDEX", "NAME", "UUID", "MEMORY", "UNITS");
  for (size_t i = 0; i < advertisement.devices.size(); ++i) {
    const Device& device = advertisement.devices[i];
    row(std::to_string(device.index), device.name, device.uuid, MiB(device.total_bytes),
        std::to_string(advertisement.gpus[i].units));
  }
  for (const std::string& missing : advertisement.missing) {
    out << "not on this node: " << missing << "\n";
  }
  const auto resource = [&](binding::Resource of, const std::string& meaning) {
    out << binding::ResourceName(of) << ": " << advertisement.ids[of].size() << " (" << meaning
        << ")\n";
  };
  const std::string tokens = std::to_string(rules.tokens);
  out << "\n";
  resource(binding::Resource::kMemory,
           Concat("units of ", MiB(rules.unit_bytes), ", ", MiB(rules.reserve_bytes),
                  " of each device reserved"));
  resource(binding::Resource::kAttach, Concat(tokens, " for each device"));
  resource(binding::Resource::kExclusive, "one for each device");
  resource(binding::Resource::kGpus,
           Concat(tokens, " for each device; none if there are not two that are whole GPUs"));
  resource(binding::Resource::kNvlink,
           Concat(tokens, " for each device; none if no two have NVLink between them"));
  return std::move(out).str();
}

std::string Json(const Advertisement& advertisement, const Rules& rules) {
  nlohmann::ordered_json devices = nlohmann::ordered_json::array();
  for (size_t i = 0; i < advertisement.devices.size(); ++i) {
    const Device& device = advertisement.devices[i];
    devices.push_back({{"uuid", device.uuid},
                       {"parent_uuid", device.parent_uuid},
                       {"name", device.name},
                       {"index", device.index},
                       {"minor", device.minor},
                       {"total_bytes", device.total_bytes},
                       {"nvlink", device.nvlink},
                       {"units", advertisement.gpus[i].units}});
  }
  nlohmann::ordered_json resources;
  for (const binding::Resource resource : binding::kResources) {
    resources[binding::ResourceName(resource)] = advertisement.ids[resource].size();
  }
  const nlohmann::ordered_json all = {{"devices", devices},
                                      {"missing", advertisement.missing},
                                      {"unit_bytes", rules.unit_bytes},
                                      {"reserve_bytes", rules.reserve_bytes},
                                      {"attach_tokens", rules.tokens},
                                      {"resources", resources}};
  return all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace gpushm::plugin::inventory
