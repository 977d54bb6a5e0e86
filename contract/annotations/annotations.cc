#include "contract/annotations/annotations.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <set>

#include "contract/annotations/entries.h"
#include "contract/annotations/keys.h"
#include "contract/limits.h"
#include "platform/base/name.h"
#include "platform/yaml/keyed_reader.h"
#include "platform/yaml/quantity.h"

namespace gpushm::annotations {
namespace {

constexpr std::array<std::string_view, 3> kWriteRuleNames = {"many-writers", "one-writer",
                                                             "read-only"};
constexpr std::array<std::string_view, 3> kExitNames = {"mark", "keep", "drop"};
constexpr std::array<std::string_view, 2> kAllocationNames = {"device-plugin", "dra"};
constexpr std::array<std::string_view, 3> kRoleNames = {"user", "owner", "mps"};
constexpr size_t kFileBytes = 1024;
constexpr std::string_view kDocument = "docs/reference/annotations.md";
constexpr std::string_view kEach = "each";
constexpr std::string_view kGpuInFile = "{gpu}";  // In `file`: the number of the buffer's GPU.
constexpr uint32_t kGpusUnknown = 0;              // The pod's number of GPUs had an error.

bool HasPartOf(std::string_view path, std::string_view part) {
  while (!path.empty()) {
    const size_t slash = path.find('/');
    if (path.substr(0, slash) == part) return true;
    if (slash == std::string_view::npos) return false;
    path.remove_prefix(slash + 1);
  }
  return false;
}

// The name of the buffer on one GPU of a buffer that has `gpu: each`.
std::string NameOnGpu(std::string_view name, uint32_t gpu) { return Concat(name, "-", gpu); }

std::string FileOfGpu(std::string file, uint32_t gpu) {
  const std::string number = Concat(gpu);
  for (size_t at = 0; (at = file.find(kGpuInFile, at)) != std::string::npos; at += number.size()) {
    file.replace(at, kGpuInFile.size(), number);
  }
  return file;
}

// Reads the entry of one annotation. Errors go to the list, the value goes to its place in the pod.
// A buffer gets its place once all entries were read, because that depends on the number of GPUs.
class EntryReader : public yaml::FieldReader {
 public:
  EntryReader(const AnnotationEntry& entry, const ParseOptions& options, yaml::ErrorList& errors)
      : entry_(entry), options_(options), errors_(errors) {}

  void ReadInto(PodSpec& pod);
  // The buffers that the entry declares, for a pod of so many GPUs.
  size_t BufferCount(uint32_t gpus) const { return buffer_ ? (each_ ? gpus : 1) : 0; }
  // Puts them into the pod. `taken`: the names of the buffers that are on one GPU.
  void PlaceInto(PodSpec& pod, const std::set<std::string_view>& taken);
  // Whether the pod's number of GPUs allows the entry's value.
  void CheckTopology(const PodSpec& pod);
  // Whether it goes together with a claim that pods share.
  void CheckClaim(const PodSpec& pod);
  // The name of a buffer that is on one GPU; empty if the entry declares none.
  std::string_view PlainBuffer() const {
    return buffer_ && !each_ ? std::string_view(buffer_->name) : std::string_view();
  }

 private:
  void Report(const yaml::YamlNode& at, std::string_view field, std::string reason,
              std::string example) override;
  void UnknownKey(const yaml::YamlNode& key, std::string_view path) override;
  void Add(yaml::ConfigError error, std::string_view field, std::string reason,
           std::string example);
  void FailKey(std::string reason, std::string_view nearest);
  // Reads what follows the prefix of the key. Returns false, after reporting an error, if it is not
  // a valid name.
  bool Name(std::string_view prefix, std::string_view what, std::string_view example,
            std::string& name);
  std::string Container(std::string_view wanted = {}) const;
  std::string WhyNot(const std::string& container) const;

  void Buffer();
  void Signal(PodSpec& pod);
  void BufferMap(BufferSpec& buffer);
  void Field(const yaml::YamlNode& key, const yaml::YamlNode& value, BufferSpec& buffer);
  void Containers(const yaml::YamlNode& value, std::string_view field,
                  std::vector<std::string>& out);
  void File(const yaml::YamlNode& value, BufferSpec& buffer);
  void ContentDigest(const yaml::YamlNode& value, BufferSpec& buffer);
  void Gpu(const yaml::YamlNode& value, BufferSpec& buffer);
  std::string GpuExample() const;
  void CheckTogether(const BufferSpec& buffer);
  void CheckWriters(const std::vector<std::string>& containers,
                    const std::vector<std::string>& writers);
  const yaml::YamlNode* Value(std::string_view field) const {
    return yaml::Find(entry_.value, field);
  }
  void Private(PodSpec& pod);
  void Compute(PodSpec& pod);
  // The container that follows the prefix of the key; empty, after reporting an error, if there is
  // none of this name that may attach.
  std::string ContainerOfKey(std::string_view prefix);
  std::optional<uint64_t> Cpu();

  const AnnotationEntry& entry_;
  const ParseOptions& options_;
  yaml::ErrorList& errors_;
  std::optional<BufferSpec> buffer_;  // What a buffer's entry declares.
  bool each_ = false;                 // It has `gpu: each`.
  bool gpu_is_wrong_ = false;
};

void EntryReader::Add(yaml::ConfigError error, std::string_view field, std::string reason,
                      std::string example) {
  error.annotation = entry_.key;
  error.field = field;
  error.reason = std::move(reason);
  error.example = std::move(example);
  if (error.example.empty()) {
    error.example = AnnotationExample(entry_.key, field.substr(0, field.find('[')), Container());
  }
  errors_.Add(std::move(error));
}

void EntryReader::Report(const yaml::YamlNode& at, std::string_view field, std::string reason,
                         std::string example) {
  Add(entry_.origin.At(at.line, at.column), field, std::move(reason), std::move(example));
}

// Reports that the key itself is wrong; the example shows a different key.
void EntryReader::FailKey(std::string reason, std::string_view nearest) {
  Add(entry_.key_origin.At(entry_.key_line, entry_.key_column), "", std::move(reason),
      AnnotationExample(nearest, "", Container()));
}

// A container of the pod for an example: the one nearest to `wanted`, or the first.
std::string EntryReader::Container(std::string_view wanted) const {
  if (!options_.containers || options_.containers->empty()) return "trainer";
  if (wanted.empty() || errors_.full()) return options_.containers->front();
  std::vector<std::string> all = *options_.containers;
  all.insert(all.end(), options_.more_containers.begin(), options_.more_containers.end());
  return std::string(Nearest(wanted, all));
}

// Why the container may not be named; empty if it may.
std::string EntryReader::WhyNot(const std::string& container) const {
  if (!options_.containers || std::ranges::count(*options_.containers, container) > 0 ||
      std::ranges::count(options_.more_containers, container) > 0) {
    return {};
  }
  if (const auto at = options_.unfit_containers.find(container);
      at != options_.unfit_containers.end()) {
    return Concat(yaml::Quote(container), " ", at->second);
  }
  return Concat("the pod has no container ", yaml::Quote(container), "; the nearest is ",
                yaml::Quote(Container(container)));
}

void EntryReader::ReadInto(PodSpec& pod) {
  const std::string& key = entry_.key;
  if (key == kStatusKey) return;
  if (key.starts_with(kBuffersPrefix)) return Buffer();
  if (key.starts_with(kSignalsPrefix)) return Signal(pod);
  if (key.starts_with(kPrivatePrefix)) return Private(pod);
  if (key.starts_with(kComputePrefix)) return Compute(pod);
  if (key == kPoolExtraKey) {
    pod.pool_extra_bytes = Bytes(entry_.value, "").value_or(0);
  } else if (key == kHostIpcKey) {
    pod.host_ipc = Bool(entry_.value, "").value_or(false);
  } else if (key == kCudaIpcKey) {
    pod.cuda_ipc = Bool(entry_.value, "").value_or(false);
  } else if (key == kGpusKey) {
    pod.gpus = Number(entry_.value, "", 1, limits::kPodGpus).value_or(kGpusUnknown);
  } else if (key == kTopologyKey) {
    const std::string* const text = Text(entry_.value, "");
    pod.nvlink = text != nullptr && *text == "nvlink";
    if (text != nullptr && !pod.nvlink) {
      Fail(entry_.value, "", Concat(yaml::Quote(*text), " is not nvlink, which is the only value"));
    }
  } else if (key == kAllocationKey) {
    Choice(entry_.value, "", kAllocationNames, pod.allocation.emplace());
  } else if (key == kClaimKey) {
    const std::string* const text = Text(entry_.value, "");
    if (text != nullptr && IsDnsSubdomain(*text)) {
      pod.claim = *text;
    } else if (text != nullptr) {
      Fail(entry_.value, "", Concat(yaml::Quote(*text), " is not the name of a Kubernetes object"));
    }
  } else if (key == kRoleKey) {
    Choice(entry_.value, "", kRoleNames, pod.role);
  } else if (key == kExclusiveKey) {
    pod.exclusive = Bool(entry_.value, "").value_or(false);
  } else if (key == kMpsKey) {
    pod.mps.wanted = Bool(entry_.value, "");
  } else if (key == kMpsUidKey) {
    const std::string* const text = Text(entry_.value, "");
    pod.mps.any_uid = text != nullptr && *text == "any";
    if (text != nullptr && !pod.mps.any_uid) pod.mps.uid = Number(entry_.value, "", 0, INT32_MAX);
  } else if (key == kEnforcePrivateKey) {
    pod.mps.enforce_private = Bool(entry_.value, "").value_or(false);
  } else if (key == kInjectKey) {
    pod.inject = Bool(entry_.value, "").value_or(true);
  } else if (key == kSidecarMemoryKey) {
    pod.sidecar.memory_bytes = PositiveBytes(entry_.value, "");
  } else if (key == kSidecarCpuKey) {
    pod.sidecar.cpu_millis = Cpu();
  } else if (key == kLoaderMemoryKey) {
    pod.loader.memory_bytes = PositiveBytes(entry_.value, "");
  } else if (key == kLoaderCpuKey) {
    pod.loader.cpu_millis = Cpu();
  } else {
    std::string nearest = NearestAnnotation(key);
    if (const size_t at = nearest.find("$container"); at != std::string::npos) {
      nearest.replace(at, std::string_view("$container").size(), Container());
    }
    FailKey(Concat("unknown key; the nearest is ", nearest), nearest);
  }
}

std::string EntryReader::ContainerOfKey(std::string_view prefix) {
  std::string container = entry_.key.substr(prefix.size());
  const std::string why =
      IsDnsLabel(container)
          ? WhyNot(container)
          : Concat(yaml::Quote(container),
                   " is not a valid container name (lower case letters, digits and '-', at most ",
                   limits::kNameBytes, ")");
  if (why.empty()) return container;
  FailKey(why, Concat(prefix, Container(container)));
  return {};
}

void EntryReader::Private(PodSpec& pod) {
  const std::string container = ContainerOfKey(kPrivatePrefix);
  if (container.empty()) return;
  if (const auto bytes = Bytes(entry_.value, "")) pod.private_bytes[container] = *bytes;
}

void EntryReader::Compute(PodSpec& pod) {
  const std::string container = ContainerOfKey(kComputePrefix);
  if (container.empty()) return;
  if (const auto percent = Number(entry_.value, "", 1, 100)) {
    pod.mps.compute_percent[container] = *percent;
  }
}

std::optional<uint64_t> EntryReader::Cpu() {
  const std::string* text = Text(entry_.value, "");
  if (text == nullptr) return std::nullopt;
  const auto millis = yaml::ParseMilliCpus(*text);
  if (millis && *millis != 0) return *millis;
  Fail(entry_.value, "",
       millis ? Concat(yaml::Quote(*text), " is zero; must be greater than zero") : millis.error());
  return std::nullopt;
}

bool EntryReader::Name(std::string_view prefix, std::string_view what, std::string_view example,
                       std::string& name) {
  name = entry_.key.substr(prefix.size());
  if (IsDnsLabel(name)) return true;
  FailKey(
      Concat(yaml::Quote(name), " is not a valid ", what,
             " name (lower case letters, digits and '-', which may not be first or last, at most ",
             limits::kNameBytes, ")"),
      Concat(prefix, example));
  return false;
}

void EntryReader::Buffer() {
  BufferSpec buffer;
  if (!Name(kBuffersPrefix, "buffer", "weights", buffer.name)) return;
  if (entry_.value.kind == yaml::YamlNode::Kind::kMap) {
    BufferMap(buffer);
  } else if (entry_.value.kind == yaml::YamlNode::Kind::kSequence) {
    Fail(entry_.value, "", "is a list; write a quantity or a map");
  } else {
    buffer.size_bytes = PositiveBytes(entry_.value, "size").value_or(0);
  }
  buffer_ = std::move(buffer);
}

void EntryReader::PlaceInto(PodSpec& pod, const std::set<std::string_view>& taken) {
  if (!buffer_) return;
  const std::string& name = buffer_->name;
  const bool known = pod.gpus != kGpusUnknown;
  if (!each_) {
    if (known && buffer_->gpu >= pod.gpus) {
      Fail(*Value("gpu"), "gpu",
           Concat("is ", buffer_->gpu, ", but the pod has ", pod.gpus,
                  pod.gpus == 1 ? " GPU, with the number 0" : " GPUs, numbered from 0 to ",
                  pod.gpus == 1 ? std::string() : Concat(pod.gpus - 1)),
           // A pod that does not say how many it has probably forgot to.
           pod.gpus == 1 ? Concat(kGpusKey, ": \"", buffer_->gpu + 1, "\"") : GpuExample());
    }
    pod.buffers.push_back(*buffer_);
    return;
  }
  if (!known || pod.buffers.size() > limits::kBuffers) return;  // There is an error for it.
  const std::string last = NameOnGpu(name, pod.gpus - 1);
  if (last.size() > limits::kNameBytes) {
    return Fail(*Value("gpu"), "gpu",
                Concat("the name of its buffer on the last GPU, ", yaml::Quote(last), ", has ",
                       last.size(), " characters; must have at most ", limits::kNameBytes),
                EachGpuExample(entry_.key, /*other_name=*/true));
  }
  for (uint32_t gpu = 0; gpu < pod.gpus; ++gpu) {
    if (const std::string on_gpu = NameOnGpu(name, gpu); taken.contains(on_gpu)) {
      return Fail(
          *Value("gpu"), "gpu",
          Concat("its buffer on GPU ", gpu, " would have the name of ", kBuffersPrefix, on_gpu),
          EachGpuExample(entry_.key, /*other_name=*/true));
    }
  }
  for (uint32_t gpu = 0; gpu < pod.gpus; ++gpu) {
    BufferSpec& buffer = pod.buffers.emplace_back(*buffer_);
    buffer.name = NameOnGpu(name, gpu);
    buffer.file = FileOfGpu(buffer_->file, gpu);
    buffer.gpu = gpu;
  }
}

void EntryReader::CheckTopology(const PodSpec& pod) {
  if (entry_.key != kTopologyKey || !pod.nvlink || pod.gpus != 1) return;
  Fail(entry_.value, "", "nvlink needs at least two GPUs, and the pod has 1",
       Concat(kGpusKey, ": \"2\""));
}

void EntryReader::CheckClaim(const PodSpec& pod) {
  const std::string_view key = entry_.key;
  if (pod.claim.empty()) {
    if (key != kRoleKey || pod.role == ClaimRole::kUser) return;
    return Fail(entry_.value, "", "a pod with this role needs the claim that it shares",
                Concat(kClaimKey, ": weights"));
  }
  if (key == kExclusiveKey || key == kTopologyKey) {
    return Fail(entry_.value, "", "pods that share a claim say this in the claim",
                "remove it; gpushmctl claim has --exclusive and --nvlink");
  }
  if (key == kAllocationKey && pod.allocation == Allocation::kDevicePlugin) {
    return Fail(entry_.value, "", Concat("a pod with ", kClaimKey, " gets its memory by a claim"),
                Concat(kAllocationKey, ": dra"));
  }
  if (key == kMpsKey && pod.role == ClaimRole::kMps && pod.mps.wanted == false) {
    return Fail(entry_.value, "", "this pod runs the MPS daemon of its claim", "remove it");
  }
  static constexpr std::array<std::string_view, 7> kOfAllPods = {
      kClaimKey, kRoleKey, kGpusKey, kAllocationKey, kInjectKey, kMpsKey, kMpsUidKey};
  if (pod.role == ClaimRole::kOwner || std::ranges::count(kOfAllPods, key) > 0 ||
      key.starts_with(kComputePrefix)) {
    return;
  }
  Fail(entry_.value, "", "only the owner of the claim can say this",
       Concat("remove it, or ", kRoleKey, ": owner"));
}

void EntryReader::BufferMap(BufferSpec& buffer) {
  for (const auto& [key, value] : entry_.value.entries) Field(key, value, buffer);
  if (Value("size") == nullptr) Fail(entry_.value, "size", "is missing");
  CheckTogether(buffer);
}

void EntryReader::Field(const yaml::YamlNode& key, const yaml::YamlNode& value,
                        BufferSpec& buffer) {
  const std::string& name = key.text;
  if (name == "size") {
    buffer.size_bytes = PositiveBytes(value, name).value_or(0);
  } else if (name == "generations") {
    buffer.generations = Number(value, name, 1, limits::kGenerations).value_or(1);
  } else if (name == "access") {
    Choice(value, name, kWriteRuleNames, buffer.access);
  } else if (name == "writers") {
    Containers(value, name, buffer.writers);
  } else if (name == "containers") {
    Containers(value, name, buffer.containers);
  } else if (name == "on-writer-exit") {
    Choice(value, name, kExitNames, buffer.on_writer_exit);
  } else if (name == "file") {
    File(value, buffer);
  } else if (name == "bytes") {
    buffer.file_bytes = PositiveBytes(value, name).value_or(0);
  } else if (name == "digest") {
    ContentDigest(value, buffer);
  } else if (name == "loads") {
    buffer.loads = Bool(value, name).value_or(false);
  } else if (name == "gpu") {
    Gpu(value, buffer);
  } else {
    UnknownKey(key, "");
  }
}

// Reports an unknown key in the map of a buffer or signal.
void EntryReader::UnknownKey(const yaml::YamlNode& key, std::string_view /*path*/) {
  std::vector<std::string_view> names;
  const bool buffer = entry_.key.starts_with(kBuffersPrefix);
  for (const yaml::KeyInfo& info : buffer ? BufferKeys() : SignalKeys()) names.push_back(info.name);
  const std::string_view nearest = Nearest(key.text, names);
  Fail(key, key.text, Concat("unknown key; the nearest is ", nearest),
       buffer && nearest == "gpu" ? GpuExample()
                                  : AnnotationExample(entry_.key, nearest, Container()));
}

void EntryReader::Signal(PodSpec& pod) {
  SignalSpec signal;
  if (!Name(kSignalsPrefix, "signal", "ready", signal.name)) return;
  const yaml::YamlNode::Kind kind = entry_.value.kind;
  if (kind == yaml::YamlNode::Kind::kMap) {
    for (const auto& [key, value] : entry_.value.entries) {
      if (key.text == "writers") {
        Containers(value, key.text, signal.writers);
      } else if (key.text == "containers") {
        Containers(value, key.text, signal.containers);
      } else {
        UnknownKey(key, "");
      }
    }
    CheckWriters(signal.containers, signal.writers);
  } else if (kind != yaml::YamlNode::Kind::kNull) {
    Fail(entry_.value, "",
         Concat("is ", yaml::YamlKindName(kind),
                "; write nothing, \"\", or a map of writers and containers"));
  }
  pod.signals.push_back(std::move(signal));
}

void EntryReader::Containers(const yaml::YamlNode& value, std::string_view field,
                             std::vector<std::string>& out) {
  out = ContainerNames(value, field, "every container", limits::kContainers,
                       [&](const std::string& name) -> Refusal {
                         std::string reason = WhyNot(name);
                         if (reason.empty()) return {};  // An example takes time to find.
                         return {std::move(reason),
                                 AnnotationExample(entry_.key, field, Container(name))};
                       });
  std::ranges::sort(out);
}

void EntryReader::File(const yaml::YamlNode& value, BufferSpec& buffer) {
  const std::string* text = Text(value, "file");
  if (text == nullptr) return;
  const std::string shown = yaml::Quote(*text);
  const size_t slash = text->find('/');
  const bool absolute = slash == 0;
  if (text->size() > kFileBytes) {
    return Fail(value, "file",
                Concat(shown, " has ", text->size(), " bytes; must have at most ", kFileBytes));
  }
  if (absolute && !options_.allow_absolute_file) {
    return Fail(
        value, "file",
        Concat(shown, " is an absolute path; write <volume>/<path> with a volume of the pod"));
  }
  if (!absolute && (slash == std::string::npos || !IsDnsLabel(text->substr(0, slash)))) {
    return Fail(value, "file", Concat(shown, " does not begin with the name of a volume and '/'"));
  }
  std::string_view path = std::string_view(*text).substr(slash + 1);
  // A folder ends with a slash: the model in it is loaded. It may be the volume's root.
  const bool is_root = !absolute && path.empty();
  if (path.ends_with('/')) path.remove_suffix(1);
  if (path.empty() && !is_root) {
    return Fail(value, "file", Concat(shown, " does not name a file"));
  }
  if (!is_root && (path.ends_with('/') || HasPartOf(path, "..") || HasPartOf(path, ".") ||
                   HasPartOf(path, ""))) {
    return Fail(value, "file", Concat(shown, " has an empty part, '.' or '..' in its path"));
  }
  if (path.find('\n') != std::string_view::npos) {
    return Fail(value, "file", Concat(shown, " contains a line break"));
  }
  buffer.file = *text;
}

void EntryReader::ContentDigest(const yaml::YamlNode& value, BufferSpec& buffer) {
  const std::string* const text = Text(value, "digest");
  if (text == nullptr) return;
  const auto digest = Digest::Parse(*text);
  if (digest) {
    buffer.digest = *digest;
  } else {
    Fail(value, "digest", Concat(yaml::Quote(*text), " is not g1: and 32 hexadecimal digits"));
  }
}

void EntryReader::Gpu(const yaml::YamlNode& value, BufferSpec& buffer) {
  const std::string* const text = Text(value, "gpu");
  if (text == nullptr) return;
  each_ = *text == kEach;
  if (each_) return;
  uint32_t number = 0;
  const char* const end = text->data() + text->size();
  const auto [rest, error] = std::from_chars(text->data(), end, number);
  if (error == std::errc{} && rest == end && number < limits::kPodGpus) {
    buffer.gpu = number;
    return;
  }
  gpu_is_wrong_ = true;
  Fail(value, "gpu",
       Concat(yaml::Quote(*text), " is neither a number from 0 to ", limits::kPodGpus - 1, " nor ",
              kEach),
       GpuExample());
}

// Right for every name and every number of GPUs.
std::string EntryReader::GpuExample() const {
  return Concat(entry_.key, ": '{size: 8Gi, gpu: 0}'");
}

// Checks rules that involve more than one field.
void EntryReader::CheckTogether(const BufferSpec& buffer) {
  const yaml::YamlNode* access = Value("access");
  const yaml::YamlNode* writers = Value("writers");
  const yaml::YamlNode* on_exit = Value("on-writer-exit");
  if (buffer.access == WriteRule::kReadOnly) {
    const std::string example =
        Concat(entry_.key, ": '{size: 8Gi, access: read-only, file: models/weights.bin}'");
    if (Value("file") == nullptr) {
      Fail(
          *access, "access",
          "a read-only buffer without file would stay empty indefinitely; if a container loads it, "
          "name that container in writers instead",
          example);
    }
    if (writers != nullptr) {
      Fail(*writers, "writers", "must not be set: a read-only buffer has no writers", example);
    }
    if (on_exit != nullptr) {
      Fail(*on_exit, "on-writer-exit", "must not be set: a read-only buffer has no writers",
           example);
    }
  }
  if (buffer.file.contains(kGpuInFile) && !each_ && !gpu_is_wrong_) {
    Fail(*Value("file"), "file",
         Concat(kGpuInFile, " stands for the number of a GPU only in a buffer with gpu: each"),
         EachGpuExample(entry_.key, /*other_name=*/false));
  }
  for (const char* const field : {"bytes", "digest"}) {
    const yaml::YamlNode* const announced = Value(field);
    if (announced == nullptr) continue;
    if (Value("file") == nullptr) {
      Fail(*announced, field, "says what the file has, and there is no file");
    } else if (buffer.file.contains(kGpuInFile)) {
      Fail(*announced, field, Concat("cannot be that of several files, one for each ", kGpuInFile));
    }
  }
  CheckWriters(buffer.containers, buffer.writers);
}

void EntryReader::CheckWriters(const std::vector<std::string>& containers,
                               const std::vector<std::string>& writers) {
  const yaml::YamlNode* const written = Value("writers");
  if (written == nullptr || containers.empty()) return;
  for (size_t i = 0; i < written->items.size(); ++i) {
    const std::string& name = written->items[i].text;
    // Already reported as invalid.
    if (std::ranges::find(writers, name) == writers.end()) continue;
    if (std::ranges::find(containers, name) != containers.end()) continue;
    const bool buffer = entry_.key.starts_with(kBuffersPrefix);
    Fail(written->items[i], Concat("writers[", i, "]"),
         Concat(yaml::Quote(name), " may not attach: it is not listed in containers"),
         Concat(entry_.key, ": '{", buffer ? "size: 8Gi, " : "", "containers: [", name,
                "], writers: [", name, "]}'"));
  }
}

// Adds 1 GiB for each container that attaches to anything, unless the pod says otherwise.
void AddDefaultPrivate(PodSpec& pod, const std::vector<std::string>& containers) {
  for (const std::string& container : containers) {
    const auto meant = [&](const auto& spec) { return spec.MayAttach(container); };
    const bool attaches = pod.pool_extra_bytes > 0 || pod.host_ipc ||
                          std::ranges::any_of(pod.buffers, meant) ||
                          std::ranges::any_of(pod.signals, meant);
    if (attaches) pod.private_bytes.try_emplace(container, kDefaultPrivateBytes);
  }
  const auto add_named = [&](const auto& spec) {
    for (const auto* const named : {&spec.containers, &spec.writers}) {
      for (const std::string& container : *named) {
        pod.private_bytes.try_emplace(container, kDefaultPrivateBytes);
      }
    }
  };
  std::ranges::for_each(pod.buffers, add_named);
  std::ranges::for_each(pod.signals, add_named);
}

// Buffers and signals share one name space, and each takes one place in the registry. `buffers` are
// those that the pod declares, on all of its GPUs.
void CheckNames(std::span<const AnnotationEntry> entries, const PodSpec& pod, size_t buffers,
                const std::set<std::string_view>& plain_buffers, yaml::ErrorList& errors) {
  const auto fail = [&](const AnnotationEntry& at, std::string reason, std::string example) {
    yaml::ConfigError error = at.key_origin.At(at.key_line, at.key_column);
    error.annotation = at.key;
    error.reason = std::move(reason);
    error.example = std::move(example);
    errors.Add(std::move(error));
  };
  const AnnotationEntry* last = nullptr;
  for (const AnnotationEntry& entry : entries) {
    const bool signal = entry.key.starts_with(kSignalsPrefix);
    if (signal || entry.key.starts_with(kBuffersPrefix)) last = &entry;
    if (!signal) continue;
    const std::string name = entry.key.substr(kSignalsPrefix.size());
    const BufferSpec* const buffer = pod.Find(name);
    if (buffer == nullptr) continue;
    constexpr std::string_view kEnd = "-ready";
    const std::string where = plain_buffers.contains(name) ? "" : Concat(" on GPU ", buffer->gpu);
    const std::string declared =
        where.empty() ? name : name.substr(0, name.rfind('-'));  // As in NameOnGpu.
    fail(entry, Concat("a buffer already has this name: ", kBuffersPrefix, declared, where),
         AnnotationExample(
             Concat(kSignalsPrefix, name.substr(0, limits::kNameBytes - kEnd.size()), kEnd), "",
             ""));
  }
  const auto too_many = [&](size_t there, std::string_view what, size_t most) {
    if (there <= most) return;
    fail(*last, Concat(there, what, most), AnnotationExample(last->key, "", ""));
  };
  too_many(pod.signals.size(), " signals are declared; a pod may have at most ", kMostSignals);
  too_many(buffers + pod.signals.size(),
           " buffers and signals are declared; a pod may have at most ", limits::kBuffers);
}

}  // namespace

std::string_view AllocationName(Allocation allocation) {
  return kAllocationNames[static_cast<size_t>(allocation)];
}

std::string_view WriteRuleName(WriteRule access) {
  return kWriteRuleNames[static_cast<size_t>(access)];
}

std::string_view OnWriterExitName(OnWriterExit action) {
  return kExitNames[static_cast<size_t>(action)];
}

bool BufferSpec::MayAttach(std::string_view container) const {
  return containers.empty() || std::ranges::binary_search(containers, container);
}

bool BufferSpec::MayWrite(std::string_view container) const {
  return access != WriteRule::kReadOnly && MayAttach(container) &&
         (writers.empty() || std::ranges::binary_search(writers, container));
}

bool SignalSpec::MayAttach(std::string_view container) const {
  return containers.empty() || std::ranges::binary_search(containers, container);
}

std::string LoaderOf(std::string_view buffer) {
  constexpr size_t kRest = limits::kNameBytes - kLoaderPrefix.size();
  constexpr size_t kHashBytes = 17;
  if (buffer.size() <= kRest) return Concat(kLoaderPrefix, buffer);
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a: broker and injector may be of different builds.
  for (const char c : buffer) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  char text[kHashBytes + 1];
  std::snprintf(text, sizeof text, "-%016llx", static_cast<unsigned long long>(hash));
  return Concat(kLoaderPrefix, buffer.substr(0, kRest - kHashBytes), text);
}

std::string_view BufferSpec::FileVolume() const {
  return std::string_view(file).substr(0, file.empty() ? 0 : file.find('/'));
}

std::string_view BufferSpec::FilePath() const {
  if (file.empty() || file[0] == '/') return file;
  const std::string_view path = std::string_view(file).substr(file.find('/') + 1);
  return path.empty() ? "./" : path;  // The volume's root.
}

const BufferSpec* PodSpec::Find(std::string_view name) const {
  const auto at = std::ranges::lower_bound(buffers, name, {}, &BufferSpec::name);
  return at != buffers.end() && at->name == name ? &*at : nullptr;
}

bool PodSpec::HasAccessLists() const {
  const auto listed = [](const auto& spec) {
    return !spec.containers.empty() || !spec.writers.empty();
  };
  return std::ranges::any_of(buffers, listed) || std::ranges::any_of(signals, listed);
}

PodSpec ReadAnnotations(std::span<const AnnotationEntry> entries, const ParseOptions& options,
                        yaml::ErrorList& errors) {
  PodSpec pod;
  std::vector<EntryReader> readers;
  readers.reserve(entries.size());
  std::set<std::string_view> plain_buffers;
  for (const AnnotationEntry& entry : entries) {
    EntryReader& reader = readers.emplace_back(entry, options, errors);
    reader.ReadInto(pod);
    if (!reader.PlainBuffer().empty()) plain_buffers.insert(reader.PlainBuffer());
  }
  size_t buffers = 0;
  for (EntryReader& reader : readers) {
    buffers += reader.BufferCount(pod.gpus);
    reader.PlaceInto(pod, plain_buffers);
    reader.CheckTopology(pod);
    reader.CheckClaim(pod);
  }
  if (pod.gpus == kGpusUnknown) pod.gpus = 1;
  std::ranges::sort(pod.buffers, {}, &BufferSpec::name);
  std::ranges::sort(pod.signals, {}, &SignalSpec::name);
  CheckNames(entries, pod, buffers, plain_buffers, errors);
  if (options.containers) AddDefaultPrivate(pod, *options.containers);
  return pod;
}

yaml::OrErrors<PodSpec> ParseAnnotationsOrErrors(const Annotations& annotations,
                                                 const ParseOptions& options) {
  yaml::ErrorList errors;
  std::vector<AnnotationEntry> entries;
  for (const auto& [key, value] : annotations) {
    if (!IsOurKey(key) || key == kStatusKey) continue;
    AnnotationEntry entry{key, yaml::Origin::Value(key), 0, 0, yaml::Origin::Value(key), {}};
    yaml::YamlTree tree = yaml::ParseYaml(value);
    for (const yaml::YamlError& bad : tree.errors) {
      errors.Add(YamlMistake(entry.origin, key, value, bad));
    }
    if (!tree.whole) continue;
    entry.value = std::move(tree.root);
    entries.push_back(std::move(entry));
  }
  PodSpec pod = ReadAnnotations(entries, options, errors);
  if (!errors.empty()) return std::unexpected(errors.Take());
  return pod;
}

Result<PodSpec> ParseAnnotations(const Annotations& annotations, const ParseOptions& options) {
  yaml::OrErrors<PodSpec> pod = ParseAnnotationsOrErrors(annotations, options);
  if (!pod) return std::unexpected(yaml::ToStatus(pod.error(), kDocument));
  return *std::move(pod);
}

yaml::OrErrors<PodSpec> ParseBuffersEnvironmentOrErrors(std::string_view text,
                                                        const ParseOptions& options) {
  yaml::ErrorList errors;
  const yaml::YamlTree tree = yaml::ParseYaml(text);
  const auto fail = [&](int line, int column, std::string reason) {
    yaml::ConfigError error = yaml::Origin::File(kBuffersVariable).At(line, column);
    error.reason = std::move(reason);
    error.example = AnnotationExample(Concat(kBuffersPrefix, "weights"), "", "");
    errors.Add(std::move(error));
  };
  for (const yaml::YamlError& bad : tree.errors) fail(bad.line, bad.column, bad.reason);
  PodSpec pod;
  const yaml::YamlNode& root = tree.root;
  if (root.kind == yaml::YamlNode::Kind::kMap || root.kind == yaml::YamlNode::Kind::kNull) {
    const auto entries = ReadAnnotationMap(root, kBuffersVariable, text, errors);
    pod = ReadAnnotations(entries, options, errors);
  } else {
    fail(root.line, root.column, Concat("is ", yaml::YamlKindName(root.kind), ", not a map"));
  }
  if (!errors.empty()) return std::unexpected(errors.Take());
  return pod;
}

Result<PodSpec> ParseBuffersEnvironment(std::string_view text, const ParseOptions& options) {
  yaml::OrErrors<PodSpec> pod = ParseBuffersEnvironmentOrErrors(text, options);
  if (!pod) return std::unexpected(yaml::ToStatus(pod.error(), kDocument));
  return *std::move(pod);
}

}  // namespace gpushm::annotations
