#include "plugin/inventory/taken.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "platform/base/files.h"
#include "platform/base/read_whole.h"
#include "platform/daemon/log.h"
#include "platform/daemon/unix_socket.h"

namespace gpushm::plugin::inventory {
namespace {

constexpr std::string_view kNvidia = "nvidia.com/";
constexpr size_t kMaxFileBytes = 1 << 20;

bool IsWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// Whether `id` is `uuid`, possibly followed by a suffix that does not extend its last word: "::3",
// "-3".
bool Names(std::string_view id, std::string_view uuid) {
  return !uuid.empty() && id.starts_with(uuid) &&
         (id.size() == uuid.size() || !IsWord(id[uuid.size()]));
}

// Removes a number from the start of `text`.
std::optional<uint32_t> TakeNumber(std::string_view* text) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc()) return std::nullopt;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return number;
}

bool Take(std::string_view* text, std::string_view head) {
  if (!text->starts_with(head)) return false;
  text->remove_prefix(head.size());
  return true;
}

// "3b:00.0" with or without its domain, in lower case. NVML writes the domain with eight digits,
// other programs with four.
std::optional<std::string> PciAddress(std::string_view id) {
  std::string text(id);
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  // domain:bus:device.function
  const size_t first = text.find(':');
  if (first == std::string::npos || (first != 4 && first != 8)) return std::nullopt;
  constexpr std::string_view kForm = ":xx:xx.x";
  if (text.size() != first + kForm.size()) return std::nullopt;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool digit = i < first || kForm[i - first] == 'x';
    if (digit ? std::isxdigit(static_cast<unsigned char>(text[i])) == 0
              : text[i] != kForm[i - first])
      return std::nullopt;
  }
  return first == 8 ? text.substr(4) : text;
}

struct Found {
  bool understood = false;
  std::vector<std::string> uuids;
};

template <typename Matches>
Found FindIf(const std::vector<Device>& devices, Matches matches) {
  Found found{.understood = true, .uuids = {}};
  for (const Device& device : devices) {
    if (matches(device)) found.uuids.push_back(device.uuid);
  }
  return found;
}

Found FindUuid(std::string_view id, const std::vector<Device>& devices) {
  Found found = FindIf(devices, [&](const Device& device) {
    return Names(id, device.uuid) || Names(id, device.parent_uuid);
  });
  // The GPU is not on this node, so it does not count. A MIG instance may have been created since
  // the GPUs were read.
  if (found.uuids.empty() && id.starts_with("MIG-")) found.understood = false;
  return found;
}

// nvidia0, nvidia0/gi1, nvidia0/vgpu3, nvidia0/gi1/vgpu3
Found FindMinor(std::string_view id, const std::vector<Device>& devices) {
  if (!Take(&id, "nvidia")) return {};
  const std::optional<uint32_t> minor = TakeNumber(&id);
  std::optional<uint32_t> instance;
  const bool of_instance = Take(&id, "/gi");
  if (of_instance) instance = TakeNumber(&id);
  if (!minor || (of_instance && !instance) ||
      (!id.empty() && !(Take(&id, "/vgpu") && TakeNumber(&id) && id.empty())))
    return {};
  return FindIf(devices, [&](const Device& device) {
    return device.minor == *minor &&
           (!instance || device.gpu_instance == *instance || device.gpu_instance == kNoInstance);
  });
}

Found FindId(std::string_view id, bool nvidia, const std::vector<Device>& devices) {
  if (id.starts_with("GPU-") || id.starts_with("MIG-")) return FindUuid(id, devices);
  if (const std::optional<std::string> address = PciAddress(id)) {
    return FindIf(devices, [&](const Device& device) { return device.pci_address == *address; });
  }
  return nvidia ? FindMinor(id, devices) : Found{};
}

}  // namespace

Takers FindTaken(const std::vector<Device>& devices,
                 const std::map<std::string, binding::DeviceIds>& offers,
                 const std::vector<std::string>& not_gpus) {
  Takers taken;
  for (const auto& [resource, ids] : offers) {
    if (std::ranges::find(not_gpus, resource) != not_gpus.end()) continue;
    const bool nvidia = resource.starts_with(kNvidia);
    for (const std::string& id : ids) {
      const Found found = FindId(id, nvidia, devices);
      for (const std::string& uuid : found.uuids) taken.emplace(uuid, Taker{resource, id});
      if (!found.understood && nvidia) taken.emplace(kAnyGpu, Taker{resource, id});
    }
  }
  return taken;
}

bool DraDriverServes(const std::string& plugins_registry_folder) {
  const Result<std::vector<std::string>> names = ListFolder(plugins_registry_folder);
  if (!names) return false;
  // "gpu.nvidia.com-reg.sock", with a pod's UID in between while one instance follows another. An
  // instance that was killed leaves its file.
  return std::ranges::any_of(*names, [&](const std::string& name) {
    return name.starts_with(kDraDriver) && name.ends_with("-reg.sock") &&
           SomeoneAccepts(Concat(plugins_registry_folder, "/", name));
  });
}

TakenGpus::TakenGpus(std::string path, const std::vector<std::string>& not_gpus, int64_t now_ms)
    : path_(std::move(path)) {
  const Result<std::string> text = ReadWhole(path_, kMaxFileBytes);
  if (!text) return;
  const auto known = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!known.is_object()) return;
  for (const auto& [uuid, by] : known.items()) {
    if (!by.is_string()) continue;
    const auto resource = by.get<std::string>();
    if (std::ranges::find(not_gpus, resource) != not_gpus.end()) continue;
    entries_[uuid] = {resource, now_ms};
  }
}

void TakenGpus::Observe(const Takers& seen, const std::set<std::string>& offering, int64_t now_ms) {
  bool changed = false;
  for (const auto& [uuid, taker] : seen) {
    Entry& entry = entries_[uuid];
    entry.seen_ms = now_ms;
    const bool known = std::exchange(entry.by, taker.by) == taker.by;
    if (!known) changed = true;
    if (std::exchange(entry.told, true) && known) continue;
    if (uuid != kAnyGpu) {
      LogWarning("gpu-taken", {{"gpu", uuid}, {"by", taker.by}, {"id", taker.id}});
      continue;
    }
    LogError(
        "gpus-taken",
        {{"by", taker.by},
         {"id", taker.id},
         {"reason",
          "the device may be any GPU of this node, so this plugin hands out none; if it is not "
          "a GPU, add the resource to not-gpus"}});
  }
  changed |= std::erase_if(entries_, [&](const auto& item) {
               const auto& [uuid, entry] = item;
               if (now_ms - entry.seen_ms < kForgetMs || offering.contains(entry.by)) return false;
               LogInfo("gpu-given-back", {{"gpu", uuid}, {"by", entry.by}});
               return true;
             }) > 0;
  if (changed) Write();
}

std::string TakenGpus::By(const std::string& uuid) const {
  for (const std::string& name : {uuid, std::string(kAnyGpu)}) {
    const auto found = entries_.find(name);
    if (found != entries_.end()) return found->second.by;
  }
  return {};
}

void TakenGpus::Write() const {
  nlohmann::json known = nlohmann::json::object();
  for (const auto& [uuid, entry] : entries_) known[uuid] = entry.by;
  const auto text = known.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const auto written = ReplaceFile(SystemFiles(), path_, text, 0600, Durability::kPower);
  if (!written) LogWarning("taken-not-written", {{"reason", written.error().ToString()}});
}

}  // namespace gpushm::plugin::inventory
