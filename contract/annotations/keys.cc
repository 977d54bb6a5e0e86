#include "contract/annotations/keys.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "contract/limits.h"
#include "platform/base/status.h"

namespace gpushm::config {
namespace {

constexpr std::array<KeyInfo, 8> kAnnotationKeys = {{
    {kBuffersPrefix, "<name>", "quantity, or a map (below)", "",
     "A buffer of that name (a DNS label of at most 63 characters), made when the pod starts.",
     "8Gi",
     R"("type": "string", "anyOf": [{"$ref": "#/$defs/positive"},
      {"pattern": ":", "contentMediaType": "application/yaml",
      "contentSchema": {"$ref": "#/$defs/buffer"}}])"},
    {kSignalsPrefix, "<name>", "nothing, or a map (below)", "",
     "A signal of that name, which no buffer has, made when the pod starts. It takes no GPU "
     "memory.",
     "\"\"",
     R"("type": "string", "anyOf": [{"pattern": "^\\s*$"},
      {"pattern": "[:{]", "contentMediaType": "application/yaml",
      "contentSchema": {"$ref": "#/$defs/signal"}}])"},
    {kPrivatePrefix, "<container>", "quantity", "1Gi for each container that attaches",
     "GPU memory set aside for the container's own contexts and allocations, so that the scheduler "
     "does not sell it twice. Not enforced. \"0\" is allowed.",
     "1Gi", R"("type": "string", "$ref": "#/$defs/quantity")"},
    {kPoolExtraKey, "", "quantity", "0", "Room for buffers that are created at run time.", "2Gi",
     R"("type": "string", "$ref": "#/$defs/quantity")"},
    {kHostIpcKey, "", "\"true\" or \"false\"", "\"false\"",
     "Share with other such pods of the node through the host's /dev/shm. Only in a pod that "
     "itself "
     "says hostIPC: true.",
     "\"true\"", R"("enum": ["true", "false"])"},
    {kInjectKey, "", "\"true\" or \"false\"", "\"true\"",
     "\"false\": the webhook leaves this pod alone, whatever else it says.", "\"false\"",
     R"("enum": ["true", "false"])"},
    {kSidecarCpuKey, "", "CPU quantity", "the chart's value",
     "CPU that the sidecar requests and is limited to: with little, starts and loads take long.",
     "100m", R"("type": "string",
      "pattern": "^[+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$",
      "allOf": [{"pattern": "^[+]?[0-9.]*[1-9]"}])"},
    {kSidecarMemoryKey, "", "quantity", "the chart's value",
     "Host memory that the sidecar requests and is limited to. Signals in device memory need "
     "576Mi.",
     "64Mi", R"("type": "string", "$ref": "#/$defs/positive")"},
}};

constexpr std::array<KeyInfo, 8> kBufferKeys = {{
    {"size", "", "quantity", "required", "Bytes of one generation; the driver rounds up to 2Mi.",
     "8Gi", R"("$ref": "#/$defs/positive")"},
    {"generations", "", "number from 1 to 16", "1",
     "How many generations may live at the same time: 2 lets a new one be written while the old "
     "one "
     "is in use. Each takes its full size.",
     "2", R"("type": "integer", "minimum": 1, "maximum": 16)"},
    {"access", "", "`many-writers`, `one-writer` or `read-only`", "many-writers",
     "Who may map it writable: any number at a time, one at a time, or nobody (its content then "
     "comes from `file` or `loads`).",
     "one-writer", R"("enum": ["many-writers", "one-writer", "read-only"])"},
    {"writers", "", "list of containers", "all that may attach",
     "The containers that may map it writable.", "[$container]", R"("$ref": "#/$defs/containers")"},
    {"containers", "", "list of containers", "all of the pod",
     "The containers that may attach it at all.", "[$container]",
     R"("$ref": "#/$defs/containers")"},
    {"on-writer-exit", "", "`mark`, `keep` or `drop`", "mark",
     "When a process dies while it has the buffer mapped writable: keep it and mark it, keep it "
     "and "
     "say nothing, or withdraw the generation.",
     "keep", R"("enum": ["mark", "keep", "drop"])"},
    {"file", "", "`<volume>/<path>`", "none",
     "Loaded from this file of one of the pod's volumes; attaching waits for it. A link in its "
     "path "
     "ends within that volume.",
     "models/weights.bin",
     R"("type": "string", "maxLength": 1024, "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)"
     R"((/([^./\\n]|[.][^./\\n]|[.][.][^/\\n])[^/\\n]*)+$")"},
    {"loads", "", "`true` or `false`", "false",
     "Somebody will load it through the broker (`gpushmctl load`); attaching waits for it.", "true",
     R"("type": "boolean")"},
}};

constexpr std::array<KeyInfo, 2> kSignalKeys = {{
    {"writers", "", "list of containers", "all that may open it",
     "The containers that may write it, one process at a time.", "[$container]",
     R"("$ref": "#/$defs/containers")"},
    {"containers", "", "list of containers", "all of the pod",
     "The containers that may open it at all.", "[$container]", R"("$ref": "#/$defs/containers")"},
}};

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace

std::span<const KeyInfo> AnnotationKeys() { return kAnnotationKeys; }
std::span<const KeyInfo> BufferKeys() { return kBufferKeys; }
std::span<const KeyInfo> SignalKeys() { return kSignalKeys; }

bool IsOurKey(std::string_view key) {
  // Kubernetes checks annotations' keys after lowering them, so these arrive as they were written.
  const std::string domain = Lower(key.substr(0, key.find('/')));
  return domain.ends_with("gpushm.io");
}

std::string NearestAnnotation(std::string_view key) {
  const size_t slash = key.find('/');
  const std::string_view name = slash == std::string_view::npos ? "" : key.substr(slash + 1);
  const bool valid_name = IsDnsLabel(name);
  std::vector<std::string> candidates;
  for (const KeyInfo& info : kAnnotationKeys) {
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

}  // namespace gpushm::config
