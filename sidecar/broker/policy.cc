#include "sidecar/broker/policy.h"

#include "contract/annotations/keys.h"
#include "platform/base/status.h"

namespace gpushm::broker {

Policy Policy::FromSpec(const annotations::BufferSpec& spec) {
  Policy policy;
  policy.declared = true;
  policy.containers.insert(spec.containers.begin(), spec.containers.end());
  policy.writers.insert(spec.writers.begin(), spec.writers.end());
  policy.writers_all = spec.writers.empty();
  policy.read_only = spec.access == annotations::WriteRule::kReadOnly;
  policy.one_writer = spec.access == annotations::WriteRule::kOneWriter;
  if (!spec.file.empty()) policy.loader = annotations::LoaderOf(spec.name);
  policy.gpu = spec.gpu;
  policy.on_writer_exit = spec.on_writer_exit;
  return policy;
}

Policy Policy::FromSpec(const annotations::SignalSpec& spec) {
  Policy policy;
  policy.declared = true;
  policy.signal = true;
  policy.containers.insert(spec.containers.begin(), spec.containers.end());
  policy.writers.insert(spec.writers.begin(), spec.writers.end());
  policy.writers_all = spec.writers.empty();
  policy.one_writer = true;
  policy.on_writer_exit = protocol::OnWriterExit::kKeep;  // Its cell shows who is gone.
  return policy;
}

std::string Policy::Annotation(const std::string& name) const {
  return Concat(signal ? annotations::kSignalsPrefix : annotations::kBuffersPrefix, name);
}

bool Policy::MayAttach(const std::string& container) const {
  return containers.empty() || containers.contains(container);
}

bool Policy::MayWrite(const std::string& container) const {
  if (read_only || !MayAttach(container)) return false;
  return writers_all || writers.contains(container) || (!declared && container == creator);
}

}  // namespace gpushm::broker
