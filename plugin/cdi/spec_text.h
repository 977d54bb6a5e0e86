// One binding as the text of a CDI spec, and back. Pure.
//
// The specification is container-device-interface's SPEC.md; in its words, of what is used here:
//   - cdiVersion, kind and at least one device with a name are required; unknown fields make
//     loaders refuse the file.
//   - annotations came with 0.6.0, which containerd reads from 1.7.13 on (containerd PR 9685).
//     Their keys follow the rules of Kubernetes' annotations, all together are at most 256 KiB, and
//     they stay in the spec: no container sees them.
//   - additionalGids came with 0.7.0. The version written is the lowest that the fields need, as
//     loaders refuse versions that they do not know.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "platform/base/status.h"
#include "plugin/binding/book.h"
#include "plugin/cdi/edits.h"

namespace gpushm::plugin {

// Of the annotations below "gpushm.io/". A reader refuses another one.
inline constexpr int kBindingVersion = 1;

// 4,096 IDs are 24 KiB, the edits of eight libraries 5 KiB.
inline constexpr size_t kMaxSpecBytes = size_t{256} << 10;

// "gpushm.io/memory".
std::string CdiKind(Resource resource);
// "gpushm.io/memory=m0000": what Allocate answers with, beside kSharedCdiName.
std::string CdiName(Resource resource, const std::string& name);

// What all containers get alike (SharedEdits), once and not in every binding's spec: runtimes read
// every spec again whenever one changes. With container-device-interface 1.1 and one core that
// costs 70 ms for 120 specs of 4.3 KB, and 12 ms for 120 of 0.6 KB and this one; of 1,632, a full
// node's, 930 ms and 190 ms.
inline constexpr char kSharedCdiName[] = "gpushm.io/driver=files";
inline constexpr char kSharedFileName[] = "gpushm.io-driver-files.json";
// "gpushm.io-memory-m0000.json".
std::string SpecFileName(Resource resource, const std::string& name);
// Whether a file of the runtime's folder is the plugin's, by its name; the name may make no sense.
bool IsSpecFileName(std::string_view file_name);

// The rules of container-device-interface's pkg/cdi/container-edits.go, and paths absolute.
// kInvalidArgument: which one is broken.
Result<void> CheckEdits(const Edits& edits);

// kInvalidArgument: the binding or the edits would make no valid spec.
Result<std::string> SpecText(const Binding& binding, const Edits& edits);
Result<std::string> SharedSpecText(const Edits& edits);

// Reads what another process may have written. kCorrupt: which rule is broken. kIncompatible: it
// was written by a plugin of another kBindingVersion. The edits are not read: they are derived.
Result<Binding> ParseSpec(std::string_view file_name, std::string_view text);

}  // namespace gpushm::plugin
