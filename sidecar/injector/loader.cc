#include "sidecar/injector/loader.h"

#include <cstdio>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "contract/annotations/keys.h"
#include "platform/base/nearest.h"
#include "platform/yaml/quantity.h"
#include "sidecar/injector/sidecar.h"

namespace gpushm::injector {
namespace {

constexpr char kFiles[] = "/run/gpushm-files";

// The annotation that declares the buffer. With `gpu: each` one declares a buffer of each GPU.
std::string AnnotationOf(const Pod& pod, const annotations::BufferSpec& buffer) {
  std::string key = Concat(annotations::kBuffersPrefix, buffer.name);
  return pod.annotations().contains(key) ? key : key.substr(0, key.rfind('-'));
}

// Why the loader cannot read files of the volume, as far as the pod shows it, and what to write
// instead; empty if it can.
struct Unreadable {
  std::string why = {};
  std::string example = {};
};

// What each of these modes says is for other users: the loader runs as a user of its own.
Unreadable ModeOf(const Pod& pod, const Json& source) {
  constexpr int64_t kDefaultMode = 0644;
  constexpr int64_t kOthersRead = 04;
  // The kubelet gives the files to that group. Platforms that assign uids also set it.
  const bool by_group = !pod.settings->assign_uid ||
                        Find(pod.json(), Pointer("/spec/securityContext/fsGroup")) != nullptr;
  if (by_group) return {};
  const Json* const said = Find(source, Pointer("/defaultMode"));
  const int64_t mode =
      said != nullptr && said->is_number_integer() ? said->get<int64_t>() : kDefaultMode;
  if ((mode & kOthersRead) != 0) return {};
  char text[16];
  std::snprintf(text, sizeof text, "%04llo", static_cast<unsigned long long>(mode & 07777));
  return {Concat("has the defaultMode ", text, ", with which only root reads its files"),
          "defaultMode: 0444, or an fsGroup in the pod's securityContext"};
}

Unreadable WhyUnreadable(const Pod& pod, const Json& volume, const std::string& name) {
  for (const char* const source : {"secret", "configMap", "downwardAPI", "projected"}) {
    const Json* const found = Find(volume, Pointer() / source);
    if (found != nullptr && found->is_object()) return ModeOf(pod, *found);
  }
  const Json* const kind = Find(volume, Pointer("/hostPath/type"));
  for (const char* const other : {"File", "FileOrCreate", "Socket", "CharDevice", "BlockDevice"}) {
    if (kind == nullptr || *kind != other) continue;
    return {Concat("is a hostPath of the type ", other, ", and files are in folders"),
            "the folder as the hostPath's path, with type: Directory"};
  }
  const Json* const mode = Find(volume, Pointer("/ephemeral/volumeClaimTemplate/spec/volumeMode"));
  Unreadable block{"is a block device, which has no files", "volumeMode: Filesystem"};
  if (mode != nullptr && *mode == "Block") return block;
  for (const Container& container : pod.containers()) {
    for (const Json& device : Items(*container.json, Pointer("/volumeDevices"))) {
      if (!device.is_object() || device.value("name", "") != name) continue;
      block.why = Concat("is a block device (volumeDevices of container ", container.name,
                         "), which has no files");
      return block;
    }
  }
  return {};
}

}  // namespace

void CheckFiles(const Pod& pod, Findings* found) {
  const std::vector<std::string> volumes = pod.Volumes();
  std::set<std::string> reported;
  for (const annotations::BufferSpec& buffer : pod.spec.buffers) {
    const std::string volume(buffer.FileVolume());
    if (volume.empty()) continue;
    const Json* const there = pod.Volume(volume);
    const Unreadable bad = there == nullptr ? Unreadable() : WhyUnreadable(pod, *there, volume);
    if (there != nullptr && bad.why.empty()) continue;
    yaml::ConfigError error;
    error.annotation = AnnotationOf(pod, buffer);
    if (!reported.insert(error.annotation).second) continue;
    error.field = "file";
    if (there != nullptr) {
      error.reason = Concat("the volume ", yaml::Quote(volume), " ", bad.why);
      error.example = bad.example;
      found->errors.Add(std::move(error));
      continue;
    }
    const std::string_view nearest =
        found->errors.full() ? std::string_view() : Nearest(volume, std::span(volumes));
    error.reason =
        Concat("the pod has no volume ", yaml::Quote(volume),
               nearest.empty() ? std::string() : Concat("; the nearest is ", yaml::Quote(nearest)));
    error.example = Concat("file: ", nearest.empty() ? "models" : nearest, "/", buffer.FilePath());
    found->errors.Add(std::move(error));
  }
}

Json LoaderContainer(const Pod& pod, const annotations::BufferSpec& buffer,
                     std::optional<int64_t> uid) {
  const Settings& settings = *pod.settings;
  Json command = Json::array({"/usr/bin/gpushmctl", "load", "--stay"});
  if (buffer.file_bytes != 0) {
    command.push_back(Concat("--bytes=", buffer.file_bytes));
  }
  if (!buffer.digest.empty()) {
    command.push_back(Concat("--digest=", buffer.digest.ToString()));
  }
  command.push_back(Unexpanded(Concat(kFiles, "/", buffer.FilePath())));
  command.push_back(buffer.name);
  const std::string name = annotations::LoaderOf(buffer.name);
  Json loader = AddedContainer(
      pod, name, pod.RequestOf(Asker::kApplication), pod.spec.loader,
      {.cpu_millis = {settings.loader_cpu_millis, settings.loader_cpu_limit_millis},
       .memory_bytes = {settings.loader_memory_bytes, settings.loader_memory_limit_bytes}});
  loader["restartPolicy"] = "Always";
  loader["command"] = std::move(command);
  // Without the propagation it would not see what is mounted there later, as by a FUSE daemon that
  // was started again.
  loader["volumeMounts"] = Json::array({SocketMount(name),
                                        {{"name", buffer.FileVolume()},
                                         {"mountPath", kFiles},
                                         {"readOnly", true},
                                         {"mountPropagation", "HostToContainer"}}});
  if (pod.spec.gpus > 1) loader["env"] = Json::array({DeviceOrder()});
  RunAs(pod, uid, &loader);
  return loader;
}

}  // namespace gpushm::injector
