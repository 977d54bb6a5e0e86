// GPUs that an operator took out of service: one file for each in the folder `drained` of the
// plugin's state folder. Its name is the GPU's UUID, its text the reason. gpushmctl writes them,
// and the plugin reads them (docs/design/whose-gpu.md).
//
// Threads: any.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "platform/base/status.h"

namespace gpushm::status {

inline constexpr char kDrainedFolder[] = "drained";
inline constexpr size_t kMostReasonBytes = 256;
inline constexpr char kNoReason[] = "no reason given";

// By UUID of a GPU or MIG instance: the reason, never empty, in one line. What is not such a file
// is passed over. A folder that does not exist has none. Never blocks on a file.
std::map<std::string, std::string> ReadDrained(const std::string& state_folder);

// Takes a GPU out of service, or changes the reason. kInvalidArgument: `gpu` is no UUID, or the
// reason is too long or has more than one line.
Result<void> Drain(const std::string& state_folder, std::string_view gpu, std::string_view reason);

// Puts it back. kNotFound: it is not drained.
Result<void> Undrain(const std::string& state_folder, std::string_view gpu);

}  // namespace gpushm::status
