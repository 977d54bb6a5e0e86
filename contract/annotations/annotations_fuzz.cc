// Goal: no text crashes the parser, makes it throw, or yields a specification that breaks the
// parser's contract. Method: each input is parsed as the environment's map, as the value of one
// annotation and as a quantity. Every result is checked against the header's contract.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "contract/annotations/annotations.h"
#include "contract/annotations/keys.h"
#include "contract/annotations/sizing.h"
#include "contract/limits.h"
#include "platform/yaml/quantity.h"

namespace gpushm::annotations {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void CheckPod(const PodSpec& pod) {
  for (size_t i = 0; i < pod.buffers.size(); ++i) {
    const BufferSpec& buffer = pod.buffers[i];
    Require(i == 0 || pod.buffers[i - 1].name < buffer.name);
    Require(IsDnsLabel(buffer.name) && pod.Find(buffer.name) == &buffer);
    Require(buffer.size_bytes > 0 && buffer.size_bytes <= limits::kBufferBytes);
    Require(buffer.generations >= 1 && buffer.generations <= limits::kGenerations);
    for (const std::string& writer : buffer.writers) Require(buffer.MayAttach(writer));
    if (buffer.access == WriteRule::kReadOnly) Require(buffer.StartsLoading());
    if (!buffer.file.empty()) Require(!buffer.FilePath().empty());
    Require(buffer.gpu < pod.gpus && !buffer.file.contains("{gpu}"));
  }
  Require(pod.signals.size() <= kMostSignals);
  for (size_t i = 0; i < pod.signals.size(); ++i) {
    const SignalSpec& signal = pod.signals[i];
    Require(i == 0 || pod.signals[i - 1].name < signal.name);
    Require(IsDnsLabel(signal.name) && pod.Find(signal.name) == nullptr);
    for (const std::string& writer : signal.writers) Require(signal.MayAttach(writer));
  }
  Require(pod.gpus >= 1 && pod.gpus <= limits::kPodGpus && (!pod.nvlink || pod.gpus > 1));
  for (uint32_t gpu = 0; gpu < pod.gpus; ++gpu) Require(PoolBytes(pod, gpu) <= GpuBytes(pod));
  Require(GpuBytes(pod) <= NodeBytes(pod));
  Require(PodUnits(pod, kGranularityBytes) % pod.gpus == 0);
}

void CheckErrors(const std::vector<yaml::ConfigError>& errors) {
  Require(!errors.empty() && errors.size() <= yaml::kErrorsKept + 1);
  for (const yaml::ConfigError& error : errors) {
    Require(!error.reason.empty() && error.line >= 0 && error.column >= 0);
    Require(error.ToString().find('\n') == std::string::npos);
  }
}

void Check(const yaml::OrErrors<PodSpec>& result) {
  if (!result) return CheckErrors(result.error());
  CheckPod(*result);
}

}  // namespace
}  // namespace gpushm::annotations

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gpushm;
  using namespace gpushm::annotations;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const ParseOptions strict{.containers = std::vector<std::string>{"decoder", "model"}};
  Check(ParseBuffersEnvironmentOrErrors(text));
  Check(ParseBuffersEnvironmentOrErrors(text, strict));
  Check(ParseAnnotationsOrErrors({{"buffers.gpushm.io/weights", std::string(text)}}, strict));
  Check(ParseAnnotationsOrErrors({{"signals.gpushm.io/ready", std::string(text)}}, strict));
  Check(ParseAnnotationsOrErrors({{std::string(text), "8Gi"}}, strict));
  Check(ParseAnnotationsOrErrors(
      {{"buffers.gpushm.io/weights", std::string(text)}, {"gpushm.io/gpus", "3"}}, strict));
  Check(ParseAnnotationsOrErrors({{"gpushm.io/gpus", std::string(text)}}, strict));
  if (const auto bytes = yaml::ParseBytes(text))
    Require(yaml::ParseBytes(yaml::FormatBytes(*bytes)) == *bytes);
  (void)yaml::ParseMilliCpus(text);
  return 0;
}
