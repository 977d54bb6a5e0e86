#include "contract/annotations/keys.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "contract/limits.h"
#include "platform/base/status.h"

namespace gpushm::annotations {
namespace {

constexpr char kCpuSchema[] = R"("type": "string",
      "pattern": "^[+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$",
      "allOf": [{"pattern": "^[+]?[0-9.]*[1-9]"}])";

constexpr std::array<yaml::KeyInfo, 21> kAnnotationKeys = {{
    {kBuffersPrefix, "<name>", "quantity, or a map (below)", "",
     "A buffer with this name (a DNS label of at most 63 characters), made when the pod starts.",
     "8Gi",
     R"("type": "string", "anyOf": [{"$ref": "#/$defs/positive"},
      {"pattern": ":", "contentMediaType": "application/yaml",
      "contentSchema": {"$ref": "#/$defs/buffer"}}])"},
    {kSignalsPrefix, "<name>", "nothing, or a map (below)", "",
     "A signal with this name, made when the pod starts. "
     "No buffer may have the same name. A signal takes no GPU memory.",
     "\"\"",
     R"("type": "string", "anyOf": [{"pattern": "^\\s*$"},
      {"pattern": "[:{]", "contentMediaType": "application/yaml",
      "contentSchema": {"$ref": "#/$defs/signal"}}])"},
    {kPrivatePrefix, "<container>", "quantity", "1Gi for each container that attaches",
     "GPU memory reserved for the container's own contexts and allocations, "
     "so that the scheduler does not allocate it twice. It is not enforced. \"0\" is allowed.",
     "1Gi", R"("type": "string", "$ref": "#/$defs/quantity")"},
    {kPoolExtraKey, "", "quantity", "0",
     "Space in the pool for buffers that are created at run time, "
     "and for more generations than are declared.",
     "2Gi", R"("type": "string", "$ref": "#/$defs/quantity")"},
    {kHostIpcKey, "", "\"true\" or \"false\"", "\"false\"",
     "Share memory with other such pods on the node through the host's /dev/shm. "
     "It is allowed only in a pod that itself sets hostIPC: true.",
     "\"true\"", R"("enum": ["true", "false"])", yaml::kExperimental},
    {kCudaIpcKey, "", "\"true\" or \"false\"", "\"false\"",
     "Programs that use CUDA IPC work unchanged between the containers that attach. A library is "
     "loaded into each of their programs, by a file /etc/ld.so.preload that gpushm mounts.",
     "\"true\"", R"("enum": ["true", "false"])"},
    {kMpsKey, "", "\"true\" or \"false\"", "the chart's value",
     "Run the containers that attach under an MPS server of the pod's own, so that their kernels run "
     "at the same time. Without it, the GPU takes turns of about 2 ms between busy containers. "
     "All of them must run as one uid. With `gpushm.io/claim` the server is that of the claim, which "
     "the pod with the role `mps` runs for all of them.",
     "\"true\"", R"("enum": ["true", "false"])"},
    {kMpsUidKey, "", "number or `any`", "runAsUser of the containers, or of the pod",
     "With MPS: the uid as which the containers that attach run, if only their images say so. "
     "With `any` they may have different uids; the MPS daemon is then root with the capabilities "
     "SETUID and SETGID, which a restricted namespace refuses.",
     "\"1000\"", R"("type": "string", "pattern": "^([0-9]{1,10}|any)$")"},
    {kEnforcePrivateKey, "", "\"true\" or \"false\"", "\"false\"",
     "With MPS: each process of a container can use at most the container's private memory and "
     "what the container may attach. It stops mistakes, not malice: a process can remove the limit.",
     "\"true\"", R"("enum": ["true", "false"])"},
    {kComputePrefix, "<container>", "number from 1 to 100", "100",
     "With MPS: how many percent of the GPU's multiprocessors each process of the container can use.",
     "\"50\"", R"("type": "string", "pattern": "^([1-9][0-9]?|100)$")"},
    {kGpusKey, "", "number from 1 to 16", "1",
     "The number of GPUs of the pod, all of one node. Every container that attaches sees all of "
     "them, numbered from 0 in the order of their PCI addresses. What the pod reserves is the same "
     "on each: what the fullest one needs.",
     "\"2\"", R"("type": "string", "pattern": "^([1-9]|1[0-6])$")"},
    {kTopologyKey, "", "`nvlink`", "NVLink is preferred",
     "The pod gets only GPUs that have NVLink between each two of them. It needs at least two "
     "GPUs.",
     "nvlink", R"("enum": ["nvlink"])"},
    {kExclusiveKey, "", "\"true\" or \"false\"", "\"false\"",
     "The pod has its GPUs alone: gpushm gives no memory of them to another pod. "
     "The pod starts when as many GPUs have no other pod.",
     "\"true\"", R"("enum": ["true", "false"])"},
    {kAllocationKey, "", "`device-plugin` or `dra`",
     "the namespace's label, else the chart's value",
     "How the pod gets its GPU memory: as extended resources, or by a ResourceClaim that gpushm makes "
     "for it (dynamic resource allocation, Kubernetes 1.36). It decides to which nodes the pod can go.",
     "dra", R"("enum": ["device-plugin", "dra"])"},
    {kClaimKey, "", "name of a ResourceClaim", "a claim of the pod's own",
     "The pod shares GPU memory with the other pods of its namespace that name this claim, which you "
     "create (`gpushmctl claim` prints it). All of them run on one node. The claim says how much "
     "memory of which GPUs they have together.",
     "weights", R"("type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")"},
    {kRoleKey, "", "`owner`, `user` or `mps`", "user",
     "Whether the pod declares the buffers of its claim and serves them, or uses what the owner "
     "declares. A second owner waits until the first one has ended. With `mps` it is a user that also "
     "runs the MPS daemon of all pods of the claim.",
     "owner", R"("enum": ["owner", "user", "mps"])"},
    {kInjectKey, "", "\"true\" or \"false\"", "\"true\"",
     "With \"false\" the webhook ignores this pod, whatever its other annotations say.",
     "\"false\"", R"("enum": ["true", "false"])", yaml::kExperimental},
    {kSidecarCpuKey, "", "CPU quantity", "the chart's value",
     "The sidecar's CPU request and limit. With a small value, starts take long.", "100m",
     kCpuSchema, yaml::kExperimental},
    {kSidecarMemoryKey, "", "quantity", "the chart's value",
     "The sidecar's host memory request and limit.", "64Mi",
     R"("type": "string", "$ref": "#/$defs/positive")", yaml::kExperimental},
    {kLoaderCpuKey, "", "CPU quantity", "the chart's values",
     "The CPU request and limit of each container that loads a `file`.", "1", kCpuSchema,
     yaml::kExperimental},
    {kLoaderMemoryKey, "", "quantity", "the chart's values",
     "The host memory request and limit of each container that loads a `file`. With less than about "
     "600Mi it may be killed during the load.",
     "640Mi", R"("type": "string", "$ref": "#/$defs/positive")", yaml::kExperimental},
}};

constexpr std::array<yaml::KeyInfo, 11> kBufferKeys = {{
    {"size", "", "quantity", "required",
     "Bytes of one generation. The driver rounds them up to a multiple of 2Mi.", "8Gi",
     R"("$ref": "#/$defs/positive")"},
    {"generations", "", "number from 1 to 16", "1",
     "How many generations the pool has room for at the same time. "
     "With 2, a new one can be written while the old one is in use. Each takes the full size.",
     "2", R"("type": "integer", "minimum": 1, "maximum": 16)"},
    {"access", "", "`many-writers`, `one-writer` or `read-only`", "many-writers",
     "Who may map it writable: any number of processes at a time, "
     "one at a time, or nobody (its content then comes from `file`).",
     "one-writer", R"("enum": ["many-writers", "one-writer", "read-only"])"},
    {"writers", "", "list of containers", "all that may attach",
     "The containers that may map it writable.", "[$container]", R"("$ref": "#/$defs/containers")"},
    {"containers", "", "list of containers", "all of the pod", "The containers that may attach it.",
     "[$container]", R"("$ref": "#/$defs/containers")"},
    {"on-writer-exit", "", "`mark`, `keep` or `drop`", "mark",
     "What happens when a process dies while it has the buffer mapped writable: "
     "the buffer is kept and marked, kept without a mark, or its generation is withdrawn.",
     "keep", R"("enum": ["mark", "keep", "drop"])"},
    {"file", "", "`<volume>/<path>`", "none",
     "The file, in one of the pod's volumes, from which the pod's container `gpushm-load-<name>`, "
     "which gpushm adds, loads the buffer. Attaching waits for the load. "
     "The tensors of a safetensors file, of an index of shards, and of a folder (with a slash at "
     "its end) are laid out and described.",
     "models/weights.bin",
     R"("type": "string", "maxLength": 1024, "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)"
     R"((/|(/([^./\\n]|[.][^./\\n]|[.][.][^/\\n])[^/\\n]*)+/?)$")"},
    {"bytes", "", "quantity", "not checked",
     "How many bytes `file` has, or all files of a model together. The load waits for them, and "
     "refuses more.",
     "16060522496, file: models/weights.bin", R"("$ref": "#/$defs/positive")", yaml::kExperimental},
    {"digest", "", "digest", "not checked",
     "The digest that the content of `file` must have, as `gpushmctl stat` shows it: a file with "
     "other content is refused. It finds mistakes, not malice.",
     "\"g1:0123456789abcdef0123456789abcdef\", file: models/weights.bin",
     R"("type": "string", "pattern": "^g1:[0-9a-fA-F]{32}$")", yaml::kExperimental},
    {"loads", "", "`true` or `false`", "false",
     "One of its writers will load it, for example by `gpushmctl load`. Attaching waits for the "
     "load.",
     "true", R"("type": "boolean")"},
    {"gpu", "", "number below that of the pod's GPUs, or `each`", "0",
     "The GPU on which the buffer is. With `each` there is one buffer on each GPU: of `weights` "
     "they are `weights-0`, `weights-1` and so on. `{gpu}` in their `file` stands for the number "
     "(in quotes where the map has braces).",
     "each", R"("anyOf": [{"type": "integer", "minimum": 0, "maximum": 15}, {"const": "each"}])"},
}};

constexpr std::array<yaml::KeyInfo, 2> kSignalKeys = {{
    {"writers", "", "list of containers", "all that may open it",
     "The containers that may write it, one process at a time.", "[$container]",
     R"("$ref": "#/$defs/containers")"},
    {"containers", "", "list of containers", "all of the pod", "The containers that may open it.",
     "[$container]", R"("$ref": "#/$defs/containers")"},
}};

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace

std::span<const yaml::KeyInfo> AnnotationKeys() { return kAnnotationKeys; }
std::span<const yaml::KeyInfo> BufferKeys() { return kBufferKeys; }
std::span<const yaml::KeyInfo> SignalKeys() { return kSignalKeys; }

bool IsOurKey(std::string_view key) {
  // Kubernetes lower-cases annotation keys only to validate them, so they arrive here as written.
  const std::string domain = Lower(key.substr(0, key.find('/')));
  return domain.ends_with("gpushm.io");
}

std::string NearestAnnotation(std::string_view key) {
  const size_t slash = key.find('/');
  const std::string_view name = slash == std::string_view::npos ? "" : key.substr(slash + 1);
  const bool valid_name = IsDnsLabel(name);
  std::vector<std::string> candidates;
  for (const yaml::KeyInfo& info : kAnnotationKeys) {
    std::string candidate(info.name);
    if (!info.variable.empty()) {
      const std::string_view stand_in = info.name == kBuffersPrefix   ? "weights"
                                        : info.name == kSignalsPrefix ? "ready"
                                                                      : "$container";
      candidate += valid_name ? name : stand_in;
    }
    candidates.push_back(std::move(candidate));
  }
  return std::string(Nearest(Lower(key), candidates));
}

}  // namespace gpushm::annotations
