#include "sidecar/injector/pod.h"

#include <algorithm>
#include <utility>

#include "contract/annotations/keys.h"
#include "contract/annotations/sizing.h"
#include "contract/limits.h"
#include "platform/base/version.h"
#include "platform/yaml/quantity.h"
#include "sidecar/injector/digest.h"
#include "sidecar/injector/mps.h"

namespace gpushm::injector {
namespace {

using annotations::Allocation;
using yaml::ConfigError;

constexpr char kSpec[] = "/spec";
constexpr char kEndsTooEarly[] =
    "is an init container that ends before the pod runs, so it cannot attach: the kubelet "
    "would admit it again after a restart. Set its restartPolicy: Always, or load the buffer from "
    "its file: file: <volume>/<path>";
// A container's environment variable holds at most 128 KiB (execve(2), MAX_ARG_STRLEN).
constexpr size_t kVariableBytes = 120 * 1024;
// The most containers, and also volumes, of a pod with gpushm's annotations: far more than a node
// can run.
constexpr size_t kMostListed = 1024;
// The most of gpushm.io/status that is parsed. It is an object with lists of names, one per
// container.
constexpr size_t kStatusBytes = 64 * 1024;
constexpr ptrdiff_t kStatusBrackets = 8;
constexpr char kUserRole[] = "user";  // In gpushm.io/status of a pod without a sidecar.

Kind KindOf(const Json& container, bool init) {
  if (!init) return Kind::kApplication;
  const std::string* const policy = TextOf(container, "restartPolicy");
  return policy != nullptr && *policy == "Always" ? Kind::kNativeSidecar : Kind::kInit;
}

// This check comes first, because later checks compare names with names, and messages repeat them.
std::optional<ConfigError> TooMany(const PodView& pod) {
  const auto too_many = [](const char* field, size_t there, const char* what) {
    return PodError(field, Concat("the pod has ", there, what, "; at most ", kMostListed),
                    "split the pod, or set gpushm.io/inject: \"false\"");
  };
  const size_t containers = pod.containers().size();
  if (containers > kMostListed) return too_many("spec.containers", containers, " containers");
  const std::vector<std::string> volumes = pod.Volumes();
  if (volumes.size() > kMostListed) return too_many("spec.volumes", volumes.size(), " volumes");

  const auto too_long = [](const std::string& name) { return name.size() > limits::kNameBytes; };
  const auto long_name = [](const std::string& field, const std::string& name) {
    return PodError(field,
                    Concat("its name has ", name.size(), " bytes; at most ", limits::kNameBytes),
                    "name: model");
  };
  const auto container = std::ranges::find_if(pod.containers(), too_long, &Container::name);
  if (container != pod.containers().end()) return long_name(container->Field(), container->name);
  const auto volume = std::ranges::find_if(volumes, too_long);
  if (volume == volumes.end()) return std::nullopt;
  return long_name(Concat("spec.volumes[", volume - volumes.begin(), "]"), *volume);
}

// YAML in which each value is a JSON string, which is also a valid YAML string. Fails if it is too
// long, because parsing a text of millions of bytes would take hundreds of times its size.
std::expected<std::string, ConfigError> BuffersVariable(const annotations::Annotations& all) {
  size_t bytes = 0;
  for (const auto& [key, value] : all) bytes += key.size() + value.size();
  std::string text;
  if (bytes <= kVariableBytes) {
    for (const auto& [key, value] : all) {
      text += Unexpanded(Concat(key, ": ", Json(value).dump(), "\n"));
    }
    bytes = text.size();
  }
  if (bytes <= kVariableBytes) return text;
  return std::unexpected(
      PodError("metadata.annotations",
               Concat("gpushm's annotations take ", bytes, " bytes; at most ", kVariableBytes),
               "create buffers at run time, from gpushm.io/pool-extra"));
}

std::string DigestOf(const annotations::Annotations& all) {
  uint64_t hash = kEmptyDigest;
  for (const auto& [key, value] : all) {
    for (const std::string_view text : {key, value}) {
      hash = AddToDigest(AddToDigest(hash, text), "\xFF");
    }
  }
  return HexDigits(hash);
}

Json ReadStatus(const std::string& text) {
  if (text.size() > kStatusBytes) return nullptr;
  const auto opens = [](char c) { return c == '[' || c == '{'; };
  if (std::ranges::count_if(text, opens) > kStatusBrackets) return nullptr;
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

annotations::ParseOptions OptionsFor(const PodView& pod, const std::optional<Done>& earlier) {
  annotations::ParseOptions options;
  options.containers = pod.Names(Kind::kApplication);
  options.more_containers = pod.Names(Kind::kNativeSidecar);
  for (const std::string& name : pod.Names(Kind::kInit)) {
    options.unfit_containers.emplace(name, kEndsTooEarly);
  }
  for (const Container& container : pod.containers()) {
    if (!IsOurContainer(container.name)) continue;
    options.unfit_containers.emplace(container.name, "is gpushm's own container");
  }
  for (const char* const name : {kSidecarName, kMpsName}) {
    options.unfit_containers.emplace(name, "is gpushm's own container");
  }
  if (!earlier) return options;
  // Containers that were added later may be named, but they are not included by default.
  std::erase_if(*options.containers, [&](const std::string& name) {
    if (std::ranges::count(earlier->applications, name) > 0) return false;
    options.more_containers.push_back(name);
    return true;
  });
  return options;
}

}  // namespace

Result<PodView> PodView::Of(const Json& pod) {
  PodView view;
  view.json_ = &pod;
  const Json* const spec = injector::Find(pod, Pointer(kSpec));
  if (spec == nullptr || !spec->is_object()) {
    return Fail(
        Code::kInvalidArgument,
        Concat("the object is not a Pod: its kind is ",
               Shown(injector::Find(pod, Pointer("/kind"))), " and its spec is ", Shown(spec)),
        "send a Pod with a spec");
  }
  if (const Json* const all = injector::Find(pod, Pointer("/metadata/annotations"))) {
    if (!all->is_object()) {
      return Fail(Code::kInvalidArgument,
                  Concat("metadata.annotations is ", Shown(all), ", not a map"),
                  "write key: value for each annotation");
    }
    for (const auto& [key, value] : all->items()) {
      if (!value.is_string()) {
        return Fail(
            Code::kInvalidArgument,
            Concat("metadata.annotations: ", yaml::Quote(key), " is ", Shown(&value), ", not text"),
            "put the value in quotes");
      }
      if (key == annotations::kStatusKey) {
        view.status_ = value.get<std::string>();
      } else if (annotations::IsOurKey(key)) {
        view.annotations_.emplace(key, value.get<std::string>());
      }
    }
  }
  for (const char* const list : {"initContainers", "containers"}) {
    if (auto read = view.ReadContainers(list); !read) return std::unexpected(read.error());
  }
  return view;
}

Result<void> PodView::ReadContainers(const char* list) {
  const Pointer at = Pointer(kSpec) / list;
  const Json* const items = injector::Find(*json_, at);
  if (items == nullptr) return {};
  if (!items->is_array())
    return Fail(Code::kInvalidArgument,
                Concat("spec.", list, " is ", Shown(items), ", not a list"));
  const bool init = std::string_view(list) == "initContainers";
  for (size_t i = 0; i < items->size(); ++i) {
    const Json& item = (*items)[i];
    const std::string* const name = TextOf(item, "name");
    if (name == nullptr) {
      return Fail(Code::kInvalidArgument, Concat("spec.", list, "[", i, "] has no name"));
    }
    containers_.push_back({*name, KindOf(item, init), at / i, &item});
  }
  return {};
}

bool PodView::OptsOut() const {
  const auto inject = annotations_.find(std::string(annotations::kInjectKey));
  return inject != annotations_.end() && inject->second == "false";
}

const Container* PodView::Find(std::string_view name) const {
  const auto found = std::ranges::find(containers_, name, &Container::name);
  return found == containers_.end() ? nullptr : &*found;
}

std::vector<std::string> PodView::Names(Kind kind) const {
  std::vector<std::string> names;
  for (const Container& container : containers_) {
    if (container.kind == kind && !IsOurContainer(container.name)) names.push_back(container.name);
  }
  return names;
}

std::vector<std::string> PodView::Volumes() const {
  std::vector<std::string> names;
  for (const Json& volume : Items(*json_, Pointer("/spec/volumes"))) {
    if (const std::string* const name = TextOf(volume, "name")) names.push_back(*name);
  }
  return names;
}

const Json* PodView::Volume(std::string_view name) const {
  for (const Json& volume : Items(*json_, Pointer("/spec/volumes"))) {
    if (const std::string* const text = TextOf(volume, "name"); text != nullptr && *text == name) {
      return &volume;
    }
  }
  return nullptr;
}

bool PodView::Flag(const char* name) const {
  const Json* const flag = injector::Find(*json_, Pointer(kSpec) / name);
  return flag != nullptr && flag->is_boolean() && flag->get<bool>();
}

std::optional<Done> Done::Of(const PodView& pod) {
  if (!pod.status()) return std::nullopt;
  const Json status = ReadStatus(*pod.status());
  if (!status.is_object()) return std::nullopt;
  const bool of_other = status.value("role", Json()) == kUserRole;
  if (!of_other && pod.Find(kSidecarName) == nullptr) return std::nullopt;
  try {
    Done done = {.version = status.value("version", ""),
                 .image = status.value("image", ""),
                 .annotations = status.at("annotations"),
                 .allocation = Allocation::kDevicePlugin,
                 .applications = status.at("applications"),
                 .containers = status.at("containers")};
    if (status.value("allocation", Json()) == annotations::AllocationName(Allocation::kDra)) {
      done.allocation = Allocation::kDra;
    }
    return done;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

yaml::OrErrors<Pod> Pod::Of(PodView view, const Settings& settings,
                            std::optional<Allocation> of_namespace) {
  const auto refuse = [](ConfigError error) {
    return std::unexpected(std::vector{std::move(error)});
  };
  if (auto error = TooMany(view)) return refuse(*std::move(error));
  auto variable = BuffersVariable(view.annotations());
  if (!variable) return refuse(std::move(variable.error()));

  Pod pod{std::move(view)};
  pod.settings = &settings;
  pod.buffers_variable = *std::move(variable);
  pod.earlier = Done::Of(pod);
  auto spec =
      annotations::ParseAnnotationsOrErrors(pod.annotations(), OptionsFor(pod, pod.earlier));
  if (!spec) return std::unexpected(std::move(spec.error()));
  pod.spec = *std::move(spec);
  if (!pod.Asks()) return pod;

  pod.done = {
      .version = kVersion,
      .image = settings.sidecar_image,
      .annotations = DigestOf(pod.annotations()),
      .allocation = pod.spec.claim.empty()
                        ? pod.spec.allocation.value_or(of_namespace.value_or(settings.allocation))
                        : Allocation::kDra,
      .applications = pod.earlier ? pod.earlier->applications : pod.Names(Kind::kApplication),
      .containers = {}};
  for (const Container& container : pod.containers()) {
    const bool attaches = pod.UsesOthers()
                              ? std::ranges::count(pod.done.applications, container.name) > 0
                              : pod.spec.private_bytes.contains(container.name);
    if (attaches) pod.done.containers.push_back(container.name);
  }
  pod.stale = !pod.earlier || pod.earlier->annotations != pod.done.annotations ||
              pod.earlier->allocation != pod.done.allocation;
  pod.redo =
      pod.stale || pod.earlier->version != pod.done.version || pod.earlier->image != pod.done.image;
  for (const annotations::BufferSpec& buffer : pod.spec.buffers) {
    if (!buffer.file.empty()) pod.loaded.push_back(buffer.name);
  }
  if (pod.WantsMps()) pod.mps = PlanMps(pod);
  // Also of pods that do not say it.
  if (pod.mps) pod.spec.mps.wanted = true;
  pod.memory_bytes = annotations::NodeBytes(pod.spec);
  pod.units = annotations::PodUnits(pod.spec, settings.unit_bytes);
  if (pod.UsesClaim() && pod.spec.claim.empty()) pod.claim_template = TemplateFor(pod);
  return pod;
}

bool Pod::WantsMps() const {
  // Only its author knows whether a claim has a daemon.
  const bool by_default = SharesMps() ? spec.role == annotations::ClaimRole::kMps : settings->mps;
  return spec.mps.wanted.value_or(by_default);
}

bool Pod::Attaches(std::string_view container) const {
  return std::ranges::count(done.containers, container) > 0;
}

std::vector<const Container*> Pod::Attaching() const {
  std::vector<const Container*> attaching;
  for (const Container& container : containers()) {
    if (Attaches(container.name)) attaching.push_back(&container);
  }
  return attaching;
}

GpuRequest Pod::RequestOf(Asker asker) const {
  GpuRequest request;
  if (UsesClaim()) {
    request.claims = ClaimEntries(*this, asker);
    return request;
  }
  if (asker != Asker::kBroker) {
    request.resources = {{kAttachResource, 1}};
    return request;
  }
  request.resources = {{kMemoryResource, units}};
  if (spec.gpus > 1) request.resources.emplace_back(kGpusResource, spec.gpus);
  if (spec.exclusive) request.resources.emplace_back(kExclusiveResource, spec.gpus);
  if (spec.nvlink) request.resources.emplace_back(kNvlinkResource, 1);
  return request;
}

std::string Pod::Status() const {
  Json status = {{"version", done.version},
                 {"image", done.image},
                 {"annotations", done.annotations},
                 {"allocation", annotations::AllocationName(done.allocation)},
                 {"applications", done.applications},
                 {"containers", done.containers}};
  if (!UsesOthers()) status["memory"] = yaml::FormatBytes(memory_bytes);
  if (!UsesClaim()) status["units"] = units;
  if (spec.gpus > 1) status["gpus"] = spec.gpus;
  if (UsesOthers()) status["role"] = kUserRole;
  return status.dump();
}

ConfigError PodError(std::string field, std::string reason, std::string example) {
  ConfigError error;
  error.field = std::move(field);
  error.reason = std::move(reason);
  error.example = std::move(example);
  return error;
}

std::string Unexpanded(std::string_view text) {
  std::string out;
  for (const char c : text) {
    out += c;
    if (c == '$') out += c;
  }
  return out;
}

Result<annotations::PodSpec> ReadBuffersVariable(const Container& sidecar) {
  const Json* const variable = sidecar.Variable(annotations::kBuffersVariable);
  if (variable == nullptr) {
    return Fail(Code::kNotFound,
                Concat("the sidecar has no environment variable ", annotations::kBuffersVariable));
  }
  const auto told = variable->value("value", std::string());
  std::string text;
  for (size_t i = 0; i < told.size(); ++i) {
    text += told[i];
    if (told.substr(i, 2) == "$$") ++i;
  }
  return annotations::ParseBuffersEnvironment(text);
}

}  // namespace gpushm::injector
