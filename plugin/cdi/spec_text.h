// One binding as the text of a CDI spec, and back. Pure.
//
// The specification is container-device-interface's SPEC.md. The parts that matter here:
//   - cdiVersion, kind and at least one device with a name are required. Loaders refuse a file with
//     unknown fields.
//   - annotations came with 0.6.0, which containerd reads from 1.7.13 on (containerd PR 9685).
//     Their keys follow the rules of Kubernetes annotations, and together they have at most 256
//     KiB. They stay in the spec: no container sees them.
//   - additionalGids came with 0.7.0. The version written is the lowest that the fields need,
//     because loaders refuse versions that they do not know.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "platform/base/status.h"
#include "plugin/binding/book.h"
#include "plugin/cdi/edits.h"

namespace gpushm::plugin::cdi {

// The version of the annotations below "gpushm.io/". A reader refuses others. Those of several GPUs
// and of a claim with MPS are other ones, so that an older plugin leaves such a binding out and
// does not misread it.
inline constexpr int kBindingVersion = 1;
inline constexpr int kSeveralGpusVersion = 2;
inline constexpr int kClaimMpsVersion = 3;

// The edits of a claim's containers: one device for each role. What a container gets depends on the
// request of the claim that it names. The link folder is for the broker alone, and only the pod
// with the MPS daemon may write in its folder.
struct ClaimEdits {
  Edits broker;
  Edits app;
  std::optional<Edits> mps;  // If the binding has MPS.
};

// 4,096 IDs take 24 KiB, the edits of eight libraries 5 KiB.
inline constexpr size_t kMaxSpecBytes = size_t{256} << 10;

// "gpushm.io/memory".
std::string CdiKind(binding::Resource resource);
// "gpushm.io/memory=m0000": in Allocate's answer, together with kSharedCdiName.
std::string CdiName(binding::Resource resource, const std::string& name);

// "gpushm.io/claim=<uid>-broker": in NodePrepareResources' answer, together with kSharedCdiName.
std::string ClaimCdiName(const std::string& uid, binding::Part part);
// "gpushm.io-claim-<uid>.json".
std::string ClaimSpecFileName(const std::string& uid);

// What all containers get alike (SharedEdits) is in one spec and not in every binding's, because
// runtimes read every spec again whenever one changes. With container-device-interface 1.1 and one
// core, that takes 70 ms for 120 specs of 4.3 KB, but 12 ms for 120 of 0.6 KB plus this one. For
// 1,632 specs, a full node, it takes 930 ms and 190 ms.
inline constexpr char kSharedCdiName[] = "gpushm.io/driver=files";
inline constexpr char kSharedFileName[] = "gpushm.io-driver-files.json";
// "gpushm.io-memory-m0000.json".
std::string SpecFileName(binding::Resource resource, const std::string& name);
// Whether a file in the runtime's folder is the plugin's, judged by its name, which may still be
// invalid.
bool IsSpecFileName(std::string_view file_name);

// Checks the rules of container-device-interface's pkg/cdi/container-edits.go, and that paths are
// absolute. kInvalidArgument: the error names the broken rule.
Result<void> CheckEdits(const Edits& edits);

// kInvalidArgument: the binding or the edits do not make a valid spec.
Result<std::string> SpecText(const binding::Binding& binding, const Edits& edits);
Result<std::string> SharedSpecText(const Edits& edits);
Result<std::string> ClaimSpecText(const binding::Binding& binding, const ClaimEdits& edits);

// Reads what another process may have written. kCorrupt: the error names the broken rule.
// kIncompatible: a plugin with another kBindingVersion wrote it. The edits are not read, because
// they are derived.
Result<binding::Binding> ParseSpec(std::string_view file_name, std::string_view text);

}  // namespace gpushm::plugin::cdi
