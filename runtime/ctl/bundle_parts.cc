#include "runtime/ctl/bundle_parts.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <ranges>
#include <system_error>
#include <utility>

#include "platform/base/read_whole.h"
#include "platform/base/version.h"
#include "runtime/ctl/format.h"
#include "runtime/ctl/json.h"
#include "runtime/ctl/probe.h"
#include "runtime/ctl/views.h"

namespace gpushm::ctl {
namespace {

// In the order of the alphabet. None of them can hold a secret: they are paths, numbers, names and
// the pod's own annotations for gpushm.
constexpr std::string_view kPublicVariables[] = {
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_MODULE_LOADING",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_VISIBLE_DEVICES",
    "GPUSHM_BUFFERS",
    "GPUSHM_CUFILE",
    "GPUSHM_DIR",
    "GPUSHM_DRIVER",
    "GPUSHM_POD_NAME",
    "GPUSHM_POD_NAMESPACE",
    "GPUSHM_SIM_DEVICES",
    "GPUSHM_SIM_DIR",
    "GPUSHM_SIM_FAULT",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_VISIBLE_DEVICES",
};

constexpr size_t kSmallFileBytes = size_t{64} << 10;
// Of all mounts: a node's has some thousand lines.
constexpr size_t kMountsBytes = size_t{4} << 20;
// Of one spec: NVIDIA's largest drivers have some hundred files.
constexpr size_t kSpecBytes = size_t{1} << 20;
constexpr int kDepth = 12;  // A spec has eight levels.
constexpr size_t kSpecs = 2048;
constexpr size_t kConfigurationBytes = size_t{256} << 10;  // What the plugin reads.
constexpr size_t kListed = 256;                            // Mounts, device nodes.
// Two for each buffer that a pod can have.
constexpr size_t kHolders = 8192;

struct CloseFolder {
  void operator()(DIR* folder) const { closedir(folder); }
};
using Folder = std::unique_ptr<DIR, CloseFolder>;

// The text up to the next `separator`, which is removed with it.
std::string_view Take(std::string_view* text, char separator) {
  const size_t end = std::min(text->find(separator), text->size());
  const std::string_view taken = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return taken;
}

// The file behind links, which ReadWhole does not follow; "" if there is none.
std::string RealPath(const std::string& path) {
  std::error_code error;
  return std::filesystem::canonical(path, error).string();
}

// The file's text without line feeds at its end; "" if it cannot be read.
std::string TextOf(const std::string& path, size_t max_bytes = kSmallFileBytes) {
  std::string text = ReadWhole(RealPath(path), max_bytes).value_or("");
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

// The value of a line "name:   value" or "name=value".
std::string ValueOf(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    std::string_view line = Take(&text, '\n');
    if (!line.starts_with(name)) continue;
    line.remove_prefix(name.size());
    while (!line.empty() && std::string_view(" \t\"").contains(line.front())) line.remove_prefix(1);
    while (line.ends_with('"')) line.remove_suffix(1);
    return std::string(line);
  }
  return "";
}

bool ConcernsGpus(std::string_view path) {
  constexpr std::string_view kParts[] = {"gpushm", "nvidia", "libcuda", "/cdi", "/dev/shm"};
  return std::ranges::any_of(kParts, [&](std::string_view part) { return path.contains(part); });
}

// Whether a line's key is named like a secret. None of the plugin's own keys is, but for two.
// deploy/support-bundle has the same words.
bool NamesSecret(std::string_view key) {
  std::string lower;
  for (const char c : key) {
    if (c != '-' && c != '_') lower += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  }
  constexpr std::string_view kAnywhere[] = {"auth",   "cabundle", "credential", "key",  "pass",
                                            "secret", "token",    "url",        "value"};
  return lower != "attachtokens" && lower != "credentialsfolder" &&
         std::ranges::any_of(kAnywhere,
                             [&](std::string_view word) { return lower.contains(word); });
}

bool IsKeyCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

struct LinePart {
  std::string_view text;
  bool before_secret = false;  // It ends behind the key of a secret.
};

// One line without its comment, and without what follows a key of a secret.
LinePart PublicPart(std::string_view line) {
  for (size_t at = 0; at < line.size(); ++at) {
    const char c = line[at];
    // Also within quotes, because an apostrophe within a word is none.
    if (c == '#' && (at == 0 || line[at - 1] == ' ' || line[at - 1] == '\t')) {
      return {line.substr(0, at)};
    }
    if (c != ':') continue;
    size_t begin = at;
    while (begin > 0 && std::string_view("\"' \t").contains(line[begin - 1])) --begin;
    const size_t end = begin;
    while (begin > 0 && IsKeyCharacter(line[begin - 1])) --begin;
    if (NamesSecret(line.substr(begin, end - begin))) return {line.substr(0, at + 1), true};
  }
  return {line};
}

Json PublicEnvironment(const Json& variables) {
  Json kept = Json::array();
  for (const Json& variable : variables) {
    if (!variable.is_string()) continue;
    const std::string& text = variable.get_ref<const std::string&>();
    const std::string name = text.substr(0, text.find('='));
    kept.push_back(IsPublicVariable(name) ? text : name + "=(left out)");
  }
  return kept;
}

// The members of `from` with these names.
Json Only(const Json& from, std::initializer_list<const char*> names) {
  Json kept = Json::object();
  if (!from.is_object()) return kept;
  for (const char* name : names) {
    if (const auto found = from.find(name); found != from.end()) kept[name] = *found;
  }
  return kept;
}

Json EachOnly(const Json& list, std::initializer_list<const char*> names) {
  Json kept = Json::array();
  for (const Json& item : list) kept.push_back(Only(item, names));
  return kept;
}

Json PublicEdits(const Json& edits) {
  Json kept = Json::object();
  if (!edits.is_object()) return kept;
  if (const auto env = edits.find("env"); env != edits.end()) kept["env"] = PublicEnvironment(*env);
  if (const auto nodes = edits.find("deviceNodes"); nodes != edits.end()) {
    kept["deviceNodes"] = EachOnly(*nodes, {"path", "hostPath", "type", "permissions"});
  }
  if (const auto mounts = edits.find("mounts"); mounts != edits.end()) {
    kept["mounts"] = EachOnly(*mounts, {"hostPath", "containerPath", "options"});
  }
  if (const auto hooks = edits.find("hooks"); hooks != edits.end()) {
    kept["hooks"] = EachOnly(*hooks, {"hookName", "path"});
  }
  return kept;
}

Result<Json> PublicSpec(std::string_view text) {
  // What is nested deeper is left out: copies of it are recursive.
  const auto not_deep = [](int depth, Json::parse_event_t, const Json&) { return depth <= kDepth; };
  const Json spec = Json::parse(text, not_deep, false);
  if (!spec.is_object()) return Fail(Code::kCorrupt, "it is not a JSON object");
  Json kept = Only(spec, {"cdiVersion", "kind"});
  if (const auto notes = spec.find("annotations"); notes != spec.end() && notes->is_object()) {
    for (const auto& [key, value] : notes->items()) {
      if (key.starts_with("gpushm.io/")) kept["annotations"][key] = value;
    }
  }
  if (const auto edits = spec.find("containerEdits"); edits != spec.end()) {
    kept["containerEdits"] = PublicEdits(*edits);
  }
  if (const auto devices = spec.find("devices"); devices != spec.end()) {
    kept["devices"] = Json::array();
    for (const Json& device : *devices) {
      Json each = Only(device, {"name"});
      if (device.is_object() && device.contains("containerEdits")) {
        each["containerEdits"] = PublicEdits(device["containerEdits"]);
      }
      kept["devices"].push_back(each);
    }
  }
  return kept;
}

Result<std::vector<std::string>> NamesIn(const std::string& path, std::string_view prefix) {
  const Folder folder(opendir(path.c_str()));
  if (folder == nullptr) return FailSystem(errno, Concat("open ", path));
  std::vector<std::string> names;
  while (const dirent* entry = readdir(folder.get())) {
    if (std::string_view(entry->d_name).starts_with(prefix)) names.emplace_back(entry->d_name);
  }
  std::ranges::sort(names);
  return names;
}

Json DeviceNodes() {
  Json nodes = Json::array();
  const auto names = NamesIn("/dev", "nvidia");
  for (const std::string& name :
       names.value_or(std::vector<std::string>{}) | std::views::take(kListed)) {
    const std::string path = "/dev/" + name;
    struct stat info{};
    if (lstat(path.c_str(), &info) != 0) continue;
    nodes.push_back(
        {{"path", path},
         {"mode", Concat("0", (info.st_mode >> 6) & 7, (info.st_mode >> 3) & 7, info.st_mode & 7)},
         {"owner", Concat(info.st_uid, ":", info.st_gid)},
         {"accessible", faccessat(AT_FDCWD, path.c_str(), R_OK | W_OK, AT_EACCESS) == 0}});
  }
  return nodes;
}

std::string NameOf(const char (&name)[GPUSHM_NAME_BYTES]) {
  return {name, strnlen(name, sizeof name)};
}

Json ResourceLimit(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return nullptr;
  const auto shown = [](rlim_t value) {
    return value == RLIM_INFINITY ? Json("none") : Json(static_cast<uint64_t>(value));
  };
  return {{"soft", shown(limit.rlim_cur)}, {"hard", shown(limit.rlim_max)}};
}

// What a dlopen of the library says of its version, in a process of its own, because it runs code
// that the container brought.
Json LibraryVersion(int64_t wait_ms) {
  const auto probed = Probe(
      []() -> Result<ProbeOutput> {
        void* const library = dlopen("libgpushm.so.0", RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) return Fail(Code::kNotFound, dlerror());
        const auto version = reinterpret_cast<int (*)()>(dlsym(library, "gpushm_version"));
        if (version == nullptr) return Fail(Code::kCorrupt, "libgpushm.so.0 has no gpushm_version");
        const int number = version();
        return ProbeOutput{.text =
                               Concat(number / 10000, ".", number / 100 % 100, ".", number % 100)};
      },
      wait_ms);
  return probed ? Json(probed->text) : Json(Concat("not known: ", probed.error().what()));
}

}  // namespace

bool IsPublicVariable(std::string_view name) {
  return std::ranges::binary_search(kPublicVariables, name);
}

std::string EnvironmentJson(const std::vector<std::string>& variables) {
  Json kept = Json::object();
  for (const std::string& variable : variables) {
    const size_t equals = variable.find('=');
    const std::string name = variable.substr(0, equals);
    if (equals != variable.npos && IsPublicVariable(name)) kept[name] = variable.substr(equals + 1);
  }
  std::vector<std::string> names;
  for (const auto& [name, value] : kept.items()) names.push_back(name);
  std::ranges::sort(names);
  Json sorted = Json::object();
  for (const std::string& name : names) sorted[name] = kept[name];
  return JsonText(sorted);
}

std::string MountsJson(std::string_view mountinfo) {
  Json mounts = Json::array();
  while (!mountinfo.empty() && mounts.size() < kListed) {
    std::string_view line = Take(&mountinfo, '\n');
    const size_t separator = line.find(" - ");
    if (separator == line.npos) continue;
    std::string_view rest = line.substr(separator + 3);
    for (int field = 0; field < 4; ++field) Take(&line, ' ');  // IDs, device, root.
    const std::string_view point = Take(&line, ' ');
    const std::string_view options = Take(&line, ' ');
    if (!ConcernsGpus(point)) continue;
    mounts.push_back({{"point", point}, {"type", Take(&rest, ' ')}, {"options", options}});
  }
  return JsonText(mounts);
}

Bundle::Part HoldersJson(const std::vector<gpushm_holder>& holders) {
  Json list = Json::array();
  for (const gpushm_holder& holder : holders | std::views::take(kHolders)) {
    list.push_back({{"buffer", NameOf(holder.buffer)},
                    {"container", NameOf(holder.container)},
                    {"access", AccessName(holder.access)},
                    {"generation", std::to_string(holder.generation)},
                    {"client_id", std::to_string(holder.client_id)},
                    {"lease_id", std::to_string(holder.lease_id)},
                    {"since", FormatTime(holder.since_unix_ns)}});
  }
  Bundle::Part part{.text = JsonText({{"holders", list}})};
  if (holders.size() > kHolders) {
    part.lacks = Concat("the first ", kHolders, " of ", holders.size(), " holders are here");
  }
  return part;
}

std::string ConfigurationText(std::string_view yaml) {
  std::string text;
  std::optional<size_t> below;  // The indentation of a secret's key, while its value goes on.
  while (!yaml.empty()) {
    const std::string_view line = Take(&yaml, '\n');
    const auto [kept, secret] = PublicPart(line);
    const size_t indent = kept.find_first_not_of(' ');
    if (below && (indent == kept.npos || indent > *below ||
                  (indent == *below && kept.substr(indent).starts_with('-')))) {
      continue;
    }
    below = secret ? std::optional(indent) : std::nullopt;
    text += Concat(kept, secret ? " (removed)\n" : "\n");
  }
  return text;
}

std::string MetricsText(std::string_view page) {
  std::string text;
  while (!page.empty()) {
    const std::string_view line = Take(&page, '\n');
    std::string_view name = line;
    for (const std::string_view head : {"# HELP ", "# TYPE "}) {
      if (name.starts_with(head)) name.remove_prefix(head.size());
    }
    if (name.starts_with("gpushm_")) text += Concat(line, "\n");
  }
  return text;
}

Result<std::string> CdiSpecJson(std::string_view spec) {
  const Result<Json> kept = PublicSpec(spec);
  if (!kept) return std::unexpected(kept.error());
  return JsonText(*kept);
}

std::string ReadVersions(int64_t wait_ms) {
  utsname system{};
  uname(&system);
  const std::string distribution = TextOf("/etc/os-release");
  std::string driver = ValueOf(TextOf("/proc/driver/nvidia/version"), "NVRM version:");
  if (driver.empty()) driver = TextOf("/sys/module/nvidia/version");
  const Json json = {
      {"gpushmctl", kVersion},     {"library", LibraryVersion(wait_ms)},
      {"driver", driver},          {"kernel", system.release},
      {"machine", system.machine}, {"distribution", ValueOf(distribution, "PRETTY_NAME=")}};
  return JsonText(json);
}

std::string ReadSystem() {
  utsname system{};
  uname(&system);
  const std::string process = TextOf("/proc/self/status");
  Json json = {{"host", system.nodename}, {"uid", geteuid()}, {"gid", getegid()}};
  for (const auto& [member, name] :
       {std::pair{"capabilities", "CapEff:"}, std::pair{"no_new_privileges", "NoNewPrivs:"},
        std::pair{"seccomp", "Seccomp:"}, std::pair{"cpus", "Cpus_allowed_list:"}}) {
    json[member] = ValueOf(process, name);
  }
  json["open_files"] = ResourceLimit(RLIMIT_NOFILE);
  json["locked_bytes"] = ResourceLimit(RLIMIT_MEMLOCK);
  json["cgroup"] = Json::object();
  for (const char* file : {"memory.max", "memory.current", "memory.events", "pids.max",
                           "pids.current", "cpu.max", "dmem.max", "dmem.current"}) {
    const std::string value = TextOf(Concat("/sys/fs/cgroup/", file));
    if (!value.empty()) json["cgroup"][file] = value;
  }
  json["device_nodes"] = DeviceNodes();
  json["mounts"] =
      Json::parse(MountsJson(TextOf("/proc/self/mountinfo", kMountsBytes)), nullptr, false);
  return JsonText(json);
}

Result<Bundle::Part> ReadCdiSpecs(const std::string& folder) {
  const auto names = NamesIn(folder, "gpushm.io-");
  if (!names) {
    return Fail(names.error().code(), names.error().what(),
                "the folder of CDI specs is in the plugin's container; --cdi-folder names another");
  }
  Json specs = Json::object();
  for (const std::string& name : *names | std::views::take(kSpecs)) {
    const auto text = ReadWhole(Concat(folder, "/", name), kSpecBytes);
    const Result<Json> spec = text ? PublicSpec(*text) : std::unexpected(text.error());
    specs[name] = spec ? *spec : Json(spec.error().what());
  }
  Bundle::Part part{.text = JsonText(specs)};
  if (names->size() > kSpecs) {
    part.lacks = Concat("the first ", kSpecs, " of ", names->size(), " specs are here");
  }
  return part;
}

Result<Bundle::Part> ReadConfiguration(const std::string& path) {
  // In a ConfigMap's volume the file is a link to a link.
  const std::string file = RealPath(path);
  if (file.empty()) {
    return Fail(Code::kNotFound, Concat(path, " does not exist, or cannot be reached"),
                "this file is in the plugin's container; --config names another");
  }
  const auto text = ReadWhole(file, kConfigurationBytes);
  if (!text) return std::unexpected(text.error());
  return Bundle::Part{.text = ConfigurationText(*text)};
}

}  // namespace gpushm::ctl
